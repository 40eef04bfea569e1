# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""From a MediaWiki dump to training data, in one command.

    python -m nemo_sr.data.preprocess --input DUMP.xml.bz2 --output DIR/NAME --vocab V.json --merges M.txt --workers N

writes into DIR: train_data.jsonl, gpt2-vocab.json, gpt2-merges.txt, NAME_text_document.bin and .idx, and report.json
with the counts and what they were made from. With --train-tokenizer N it learns a vocabulary of N tokens instead.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import nemo_sr
from nemo_sr.data.articles import extract_articles
from nemo_sr.data.dump import Dump
from nemo_sr.data.encoding import encode_articles, read_texts
from nemo_sr.data.indexed import check_prefix
from nemo_sr.data.parallel import usable_cores
from nemo_sr.data.progress import complain, say
from nemo_sr.data.staging import Staging
from nemo_sr.data.tokenizer import train_vocabulary
from nemo_sr.data.vocabulary import MERGES_NAME, MIN_SIZE, VOCAB_NAME, Vocabulary

ARTICLES_NAME = "train_data.jsonl"
REPORT_NAME = "report.json"

_FORMAT = 1  # raise it when the same input gives other output, so that finished data are made anew


@dataclass(frozen=True)
class Options:
    """What to make, from what.

    Attributes:
        input: Dump, .xml, .xml.bz2 or .xml.gz.
        output: DIR/NAME.
        vocab: Vocabulary file, or None to train one.
        merges: Merges file, given exactly when ``vocab`` is.
        train_tokenizer: Number of tokens to train, given exactly when ``vocab`` is not.
        workers: Number of processes.
        force: Whether to make anew what is finished.
    """

    input: Path
    output: Path
    vocab: Path | None
    merges: Path | None
    train_tokenizer: int | None
    workers: int
    force: bool = False

    @property
    def prefix_name(self) -> str:
        """File name of the token files, without an ending."""
        return self.output.name + "_text_document"

    @property
    def output_names(self) -> list[str]:
        """File names of the outputs, in the order in which they appear."""
        tokens = [self.prefix_name + ".bin", self.prefix_name + ".idx"]
        return [ARTICLES_NAME, VOCAB_NAME, MERGES_NAME, REPORT_NAME, *tokens]


def preprocess(options: Options) -> dict[str, Any] | None:
    """Make training data of a dump, completely or not at all.

    Returns:
        What report.json holds, or None if everything was there already.

    Raises:
        ValueError: the dump or a tokenizer file is not what it should be.
        FileNotFoundError: one is not there.
        OSError: a file cannot be written.
        RuntimeError: a worker died, another run uses the folder, or Megatron-core is not installed.
    """
    if importlib.util.find_spec("megatron") is None or importlib.util.find_spec("megatron.core") is None:
        raise RuntimeError("writing .bin/.idx needs Megatron-core; it is not installed. Run: pip install nemo_sr[data]")
    vocabulary = None
    if options.vocab is not None and options.merges is not None:
        vocabulary = Vocabulary.read(options.vocab, options.merges)
    with Dump(options.input):
        source = _describe_source(options)
    folder = options.output.parent
    if not options.force and _is_done(folder, options, source):
        say(f"{folder / options.prefix_name}.bin/.idx are done, from these inputs; --force makes them anew.")
        return None
    with Staging(folder, options.output_names) as staging:
        report = _make(options, vocabulary, staging.path)
        report["source"] = source
        report["sizes"] = {
            name: (staging.path / name).stat().st_size for name in options.output_names if name != REPORT_NAME
        }
        (staging.path / REPORT_NAME).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        _refuse_other_vocabulary(folder, options, staging.path)
        staging.publish()
    return report


def _make(options: Options, vocabulary: Vocabulary | None, path: Path) -> dict[str, Any]:
    """Make everything but the report in the folder ``path``."""
    seconds: dict[str, float] = {}
    begin = time.perf_counter()
    articles = path / ARTICLES_NAME
    pages = extract_articles(options.input, articles, workers=options.workers)
    seconds["articles"] = time.perf_counter() - begin
    say(
        f"articles: {pages['articles']} of {pages['pages']} pages ({pages['redirects']} redirects, "
        f"{pages['other_namespaces']} in other namespaces, {pages['empty']} empty), {pages['text_characters']} "
        f"characters, {seconds['articles']:.1f} s",
    )

    begin = time.perf_counter()
    trained = vocabulary is None
    if vocabulary is None:
        assert options.train_tokenizer is not None
        vocabulary = train_vocabulary(read_texts(articles), size=options.train_tokenizer, num_threads=options.workers)
        vocabulary.write(path)
    else:
        assert options.vocab is not None
        assert options.merges is not None
        (path / VOCAB_NAME).write_bytes(options.vocab.read_bytes())
        (path / MERGES_NAME).write_bytes(options.merges.read_bytes())
    seconds["tokenizer"] = time.perf_counter() - begin
    note = "trained" if trained else "given"
    if trained and len(vocabulary) != options.train_tokenizer:
        note = f"trained; {options.train_tokenizer} were asked for, the text gave no more"
    say(f"tokenizer: {len(vocabulary)} tokens ({note}), {seconds['tokenizer']:.1f} s")

    begin = time.perf_counter()
    prefix = path / options.prefix_name
    num_documents, num_tokens = encode_articles(articles, vocabulary, prefix, workers=options.workers)
    check_prefix(prefix)
    seconds["tokens"] = time.perf_counter() - begin
    say(f"tokens: {num_tokens} in {num_documents} documents, {seconds['tokens']:.1f} s")
    return {
        "pages": pages,
        "tokenizer": {"size": len(vocabulary), "trained": trained, "end_of_text": vocabulary.end_of_text},
        "tokens": {"documents": num_documents, "tokens": num_tokens},
        "seconds": {stage: round(value, 3) for stage, value in seconds.items()},
        "versions": {
            "nemo_sr": nemo_sr.__version__,
            **{
                package: importlib.metadata.version(package)
                for package in ("mwxml", "mwparserfromhell", "tokenizers", "megatron-core")
            },
        },
    }


def _describe_source(options: Options) -> dict[str, Any]:
    """Describe the inputs and options that determine the output."""
    dump = options.input.stat()
    return {
        "format": _FORMAT,
        "name": options.output.name,
        "dump": {"name": options.input.name, "size": dump.st_size, "mtime_ns": dump.st_mtime_ns},
        "vocab": _hash(options.vocab),
        "merges": _hash(options.merges),
        "train_tokenizer": options.train_tokenizer,
    }


def _hash(path: Path | None) -> str | None:
    return None if path is None else hashlib.sha256(path.read_bytes()).hexdigest()


def _is_done(folder: Path, options: Options, source: dict[str, Any]) -> bool:
    try:
        report = json.loads((folder / REPORT_NAME).read_text(encoding="utf-8"))
        check_prefix(folder / options.prefix_name)
        sizes = report["sizes"]
        same_sizes = all((folder / name).stat().st_size == size for name, size in sizes.items())
        return bool(report["source"] == source and same_sizes)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _refuse_other_vocabulary(folder: Path, options: Options, staged: Path) -> None:
    """Refuse to replace the tokenizer of other data in the same folder."""
    others = [path for path in folder.glob("*_text_document.idx") if path.stem != options.prefix_name]
    for name in (VOCAB_NAME, MERGES_NAME):
        present = folder / name
        if others and present.exists() and present.read_bytes() != (staged / name).read_bytes():
            raise ValueError(
                f"one folder must hold data of one tokenizer; {folder} has {others[0].stem}, made with another "
                f"{name}. Choose another folder with --output."
            )


def parse_options(argv: Sequence[str] | None = None) -> Options:
    """Read the command line; a mistake in it ends the program with exit code 2."""
    parser = argparse.ArgumentParser(
        description="Turn a MediaWiki dump into articles, tokens and Megatron-core's .bin/.idx files."
    )
    parser.add_argument("--input", type=Path, required=True, metavar="DUMP", help=".xml, .xml.bz2 or .xml.gz")
    parser.add_argument(
        "--output", required=True, metavar="DIR/NAME", help="writes DIR/NAME_text_document.bin, .idx ..."
    )
    parser.add_argument("--vocab", type=Path, metavar="V.json", help="vocabulary of a GPT-2 tokenizer")
    parser.add_argument("--merges", type=Path, metavar="M.txt", help="its merges")
    parser.add_argument("--train-tokenizer", type=int, metavar="N", help="learn a vocabulary of N tokens instead")
    parser.add_argument(
        "--workers", type=int, default=usable_cores(), metavar="N", help="processes (default: %(default)s)"
    )
    parser.add_argument("--force", action="store_true", help="make anew what is finished")
    given = parser.parse_args(argv)
    if given.train_tokenizer is None and given.vocab is None and given.merges is None:
        parser.error("a tokenizer must be named; got none. Pass --vocab and --merges, or --train-tokenizer N.")
    if given.train_tokenizer is not None and (given.vocab is not None or given.merges is not None):
        parser.error(
            "one tokenizer must be named; got files and --train-tokenizer. Pass --vocab and --merges to use the files, "
            "or --train-tokenizer to learn one, not both."
        )
    if (given.vocab is None) != (given.merges is None):
        present, absent = ("--vocab", "--merges") if given.merges is None else ("--merges", "--vocab")
        parser.error(f"--vocab and --merges must come together; got {present} alone. Add {absent}.")
    if given.train_tokenizer is not None and given.train_tokenizer < MIN_SIZE:
        parser.error(
            f"--train-tokenizer must be at least {MIN_SIZE} (256 bytes and the end of text); "
            f"got {given.train_tokenizer}. Raise it."
        )
    if given.workers < 1:
        parser.error(f"--workers must be at least 1; got {given.workers}. Leave it out to use every core.")
    if given.output.endswith(("/", os.sep)) or Path(given.output).name in ("", ".", ".."):
        parser.error(f"--output must be a folder and a name, DIR/NAME; got {given.output!r}. Add a name, say wiki.")
    return Options(**{**vars(given), "output": Path(given.output)})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        Exit code: 0 done, 1 the environment failed (disk, memory, permissions), 2 the input is bad.
    """
    options = parse_options(argv)
    previous = signal.signal(signal.SIGTERM, _exit_on_signal)  # so that an ended batch job leaves nothing half-written
    try:
        preprocess(options)
    except (ValueError, FileNotFoundError) as error:
        complain(str(error))
        return 2
    except (OSError, RuntimeError) as error:
        complain(str(error))
        return 1
    except KeyboardInterrupt:
        complain("interrupted; nothing was written.")
        return 130
    finally:
        signal.signal(signal.SIGTERM, previous)
    return 0


def _exit_on_signal(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
