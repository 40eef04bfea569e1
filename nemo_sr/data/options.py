# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The command line of the preprocessing."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nemo_sr.data.download import TOKENIZERS
from nemo_sr.data.parallel import usable_cores
from nemo_sr.data.report import REPORT_NAME
from nemo_sr.data.sources import STDIN
from nemo_sr.data.vocabulary import MERGES_NAME, MIN_SIZE, VOCAB_NAME

ARTICLES_NAME = "train_data.jsonl"
DEFAULT_OUTPUT = "data/wikipedia/hfbpe_gpt_training_data"

_EPILOG = f"""\
stages: dump -> articles (DIR/{ARTICLES_NAME}) -> tokens (DIR/NAME_text_document.bin and .idx), with the tokenizer's
files and a report of what was read, kept and left out ({REPORT_NAME}) beside them. A run that was killed goes on where
it was when it is started again in the same way.

on many machines: --shard I/N on each, then `preprocess_wikipedia.py merge --output DIR/NAME`.

exit codes: 0 done; 1 the environment failed (disk, memory, permissions); 2 the input or the command line is wrong;
3 done, but some pages or lines could not be read and were left out: {REPORT_NAME} names them.
"""


@dataclass(frozen=True)
class Options:
    """What to make, from what.

    Attributes:
        inputs: Dumps or, with ``is_jsonl``, lines of JSON: paths, patterns, or "-".
        is_jsonl: Whether the inputs are documents already.
        output: DIR/NAME.
        vocab: Vocabulary file, or None.
        merges: Merges file, given exactly when ``vocab`` is.
        tokenizer: A tokenizer.json in their place, or None.
        train_tokenizer: Number of tokens to train, given exactly when no file is.
        workers: Number of processes.
        download: Wiki, and perhaps date, of a dump to fetch in place of ``inputs``.
        download_tokenizer: Tokenizer to fetch in place of ``vocab`` and ``merges``.
        json_key: Key of the text in lines of JSON.
        append_eod: Whether every document ends with the end of text.
        keep_disambiguations: Whether to keep pages that only list articles of like names.
        shard: Which share of the inputs to use, from 0, and of how many; None for all.
        allow_skipped: Whether a run that had to leave something out has succeeded.
        force: Whether to make anew what is finished.
    """

    inputs: tuple[str, ...]
    output: Path
    vocab: Path | None
    merges: Path | None
    tokenizer: Path | None
    train_tokenizer: int | None
    workers: int
    is_jsonl: bool = False
    download: str | None = None
    download_tokenizer: str | None = None
    json_key: str = "text"
    append_eod: bool = True
    keep_disambiguations: bool = False
    shard: tuple[int, int] | None = None
    allow_skipped: bool = False
    force: bool = False

    @property
    def folder(self) -> Path:
        """Folder of the outputs."""
        return self.output.parent if self.shard is None else shard_folder(self.output, self.shard)

    @property
    def prefix_name(self) -> str:
        """File name of the token files, without an ending."""
        return prefix_name(self.output)

    @property
    def output_names(self) -> list[str]:
        """File names of the outputs, in the order in which they appear."""
        tokens = [self.prefix_name + ".bin", self.prefix_name + ".idx"]
        return [*([] if self.is_jsonl else [ARTICLES_NAME]), VOCAB_NAME, MERGES_NAME, REPORT_NAME, *tokens]


def prefix_name(output: Path) -> str:
    """Return the file name of the token files of DIR/NAME, without an ending."""
    return output.name + "_text_document"


def shard_folder(output: Path, shard: tuple[int, int]) -> Path:
    """Return the folder of the outputs of a shard of DIR/NAME."""
    return output.parent / f"shard-{shard[0]}-of-{shard[1]}"


def parse_options(argv: Sequence[str] | None = None) -> Options:
    """Read the command line; a mistake in it ends the program with exit code 2."""
    parser = argparse.ArgumentParser(
        usage="preprocess_wikipedia.py (--input DUMP ... | --download WIKI[/DATE] | --input-jsonl FILE ...) "
        "[--output DIR/NAME]\n           (--vocab V.json --merges M.txt | --tokenizer T.json | --train-tokenizer N | "
        "--download-tokenizer gpt2) [options]\n       preprocess_wikipedia.py merge [--output DIR/NAME]",
        description="Turn MediaWiki dumps, or other text in lines of JSON, into Megatron-core's .bin/.idx files.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    source = parser.add_argument_group("input").add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--input",
        nargs="+",
        metavar="DUMP",
        help='MediaWiki exports, .xml, .xml.bz2 (multistream too) or .xml.gz: paths, "patterns*", or - for stdin',
    )
    source.add_argument(
        "--download",
        metavar="WIKI[/DATE]",
        help="fetch a dump of Wikimedia's first, say enwiki or enwiki/20260101, into DIR; resumed and checked",
    )
    source.add_argument(
        "--input-jsonl",
        nargs="+",
        metavar="FILE",
        help="lines of JSON with a text each, also .bz2 or .gz; no dump is read",
    )
    parser.add_argument(
        "--json-key", default="text", metavar="KEY", help="key of the text in --input-jsonl (%(default)s)"
    )
    parser.add_argument(
        "--keep-disambiguations", action="store_true", help="keep pages that only list articles of like names"
    )
    parser.add_argument(
        "--output",
        metavar="DIR/NAME",
        help=f"writes DIR/NAME_text_document.bin, .idx ... (default for dumps: {DEFAULT_OUTPUT})",
    )
    tokenizer = parser.add_argument_group("tokenizer (one of)")
    tokenizer.add_argument(
        "--vocab", type=Path, metavar="V.json", help="vocabulary of a GPT-2 tokenizer, with --merges"
    )
    tokenizer.add_argument("--merges", type=Path, metavar="M.txt", help="its merges")
    tokenizer.add_argument(
        "--tokenizer", type=Path, metavar="T.json", help="a Hugging Face tokenizer.json of GPT-2's kind in their place"
    )
    tokenizer.add_argument(
        "--download-tokenizer", choices=[*TOKENIZERS], help="fetch a vocabulary and its merges first, into DIR; checked"
    )
    tokenizer.add_argument(
        "--train-tokenizer", type=int, metavar="N", help="learn a vocabulary of N tokens from the text"
    )
    parser.add_argument(
        "--append-eod",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="end every document with the end of text (default: yes)",
    )
    parser.add_argument(
        "--workers", type=int, default=usable_cores(), metavar="N", help="processes (default: all cores, %(default)s)"
    )
    parser.add_argument(
        "--shard",
        metavar="I/N",
        help="use share I (from 0) of N of the inputs, write into DIR/shard-I-of-N; the subcommand `merge` joins them",
    )
    parser.add_argument("--allow-skipped", action="store_true", help="exit with 0 though something could not be read")
    parser.add_argument("--force", action="store_true", help="make anew what is finished")
    given = parser.parse_args(argv)
    _check_tokenizer(parser, given)
    if given.workers < 1:
        parser.error(f"--workers must be at least 1; got {given.workers}. Leave it out to use every core.")
    inputs = given.input or given.input_jsonl or []
    if given.download is not None and not re.fullmatch(r"[a-z_]+(/\d{8})?", given.download):
        parser.error(f"--download must be a wiki and perhaps a date, as in enwiki/20260101; got {given.download}.")
    if given.shard is not None and (given.download or given.download_tokenizer):
        parser.error("--shard needs files that are there; got a download. Fetch them first, by a run without --shard.")
    if given.input_jsonl and given.output is None:
        parser.error("--output must be given with --input-jsonl, DIR/NAME; got none. Add it.")
    if given.input_jsonl and str(STDIN) in inputs and given.train_tokenizer:
        parser.error("--train-tokenizer reads its input twice; got standard input. Pass a file.")
    output = given.output or DEFAULT_OUTPUT
    if output.endswith(("/", os.sep)) or Path(output).name in ("", ".", ".."):
        parser.error(f"--output must be a folder and a name, DIR/NAME; got {output!r}. Add a name, say wiki.")
    return Options(
        inputs=tuple(inputs),
        is_jsonl=given.input_jsonl is not None,
        download=given.download,
        download_tokenizer=given.download_tokenizer,
        output=Path(output),
        vocab=given.vocab,
        merges=given.merges,
        tokenizer=given.tokenizer,
        train_tokenizer=given.train_tokenizer,
        workers=given.workers,
        json_key=given.json_key,
        append_eod=given.append_eod,
        keep_disambiguations=given.keep_disambiguations,
        shard=_parse_shard(parser, given),
        allow_skipped=given.allow_skipped,
        force=given.force,
    )


def _parse_shard(parser: argparse.ArgumentParser, given: argparse.Namespace) -> tuple[int, int] | None:
    if given.shard is None:
        return None
    match = re.fullmatch(r"(\d+)/(\d+)", given.shard)
    if match is None or int(match[1]) >= int(match[2]):
        parser.error(f"--shard must be I/N with I from 0 to N - 1; got {given.shard}. Change it, say to 0/4.")
    if given.train_tokenizer is not None:
        parser.error(
            "--shard needs a tokenizer that is made already; got --train-tokenizer. Train it on one shard first."
        )
    if str(STDIN) in (given.input or given.input_jsonl or []):
        parser.error("--shard needs files; got standard input. Pass paths.")
    return int(match[1]), int(match[2])


def _check_tokenizer(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    if (given.vocab is None) != (given.merges is None):
        present, absent = ("--vocab", "--merges") if given.merges is None else ("--merges", "--vocab")
        parser.error(f"--vocab and --merges must come together; got {present} alone. Add {absent}.")
    ways = {
        "--vocab and --merges": given.vocab,
        "--tokenizer": given.tokenizer,
        "--download-tokenizer": given.download_tokenizer,
        "--train-tokenizer": given.train_tokenizer,
    }
    named = [way for way, value in ways.items() if value is not None]
    if len(named) != 1:
        parser.error(
            f"a tokenizer must be named, and only one; got {' and '.join(named) or 'none'}. Pass --vocab and --merges, "
            "or --tokenizer, to use files, or --train-tokenizer N to learn one."
        )
    if given.train_tokenizer is not None and given.train_tokenizer < MIN_SIZE:
        parser.error(
            f"--train-tokenizer must be at least {MIN_SIZE} (256 bytes and the end of text); "
            f"got {given.train_tokenizer}. Raise it."
        )
