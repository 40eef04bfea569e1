# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""From MediaWiki dumps to training data, in one command.

    python scripts/preprocess_wikipedia.py --input DUMP.xml.bz2 --output DIR/NAME --vocab V.json --merges M.txt

writes into DIR: train_data.jsonl, gpt2-vocab.json, gpt2-merges.txt, NAME_text_document.bin and .idx, and report.json.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, NoReturn

from nemo_sr.data.articles import extract_articles
from nemo_sr.data.download import download_dump, download_tokenizer
from nemo_sr.data.dump import read_site
from nemo_sr.data.encoding import encode_documents, read_texts
from nemo_sr.data.indexed import check_prefix
from nemo_sr.data.journal import Journal
from nemo_sr.data.merging import merge, parse_merge
from nemo_sr.data.options import ARTICLES_NAME, Options, parse_options
from nemo_sr.data.progress import complain, say
from nemo_sr.data.report import REPORT_NAME, describe_inputs, describe_lengths, hash_file, list_inputs, list_versions
from nemo_sr.data.sources import Source, expand
from nemo_sr.data.staging import Staging
from nemo_sr.data.tokenizer import train_vocabulary
from nemo_sr.data.vocabulary import MERGES_NAME, VOCAB_NAME, Vocabulary

_FORMAT = 2  # raise it when the same input gives other output, so that finished data are made anew


def preprocess(options: Options) -> dict[str, Any]:
    """Make training data of dumps, completely or not at all.

    Returns:
        What report.json holds.

    Raises:
        ValueError: an input or a tokenizer file is not what it should be.
        FileNotFoundError: one is not there.
        OSError: a file cannot be written.
        RuntimeError: a worker died, or another run uses the folder.
    """
    options = _download(options)
    vocabulary = None
    if options.vocab is not None and options.merges is not None:
        vocabulary = Vocabulary.read(options.vocab, options.merges)
    elif options.tokenizer is not None:
        vocabulary = Vocabulary.read_json(options.tokenizer)
    sources = [Source(path) for path in expand(options.inputs)]
    if not options.is_jsonl:
        for dump in sources:
            read_site(dump)
    source = _describe_source(options, sources)
    if not options.force and (report := _read_finished(options, source)) is not None:
        say(f"{options.folder / options.prefix_name}.bin/.idx are done, from these inputs; --force makes them anew.")
        return report
    with Staging(options.folder, options.output_names) as staging:
        journal = Journal(staging.path, source)
        if not staging.is_publishing:
            inputs: list[dict[str, Any]] = []
            hashed = options.shard is None  # else merge does it
            # A daemon, because a run that is ended must not wait until a file of many gigabytes is read.
            hashing = Thread(target=lambda: inputs.extend(list_inputs(sources, hashed=hashed)), daemon=True)
            hashing.start()
            report = _make(options, sources, vocabulary, staging.path, journal)
            hashing.join()
            report["inputs"] = inputs
            report["source"] = source
            names = [name for name in options.output_names if name != REPORT_NAME]
            report["sizes"] = {name: (staging.path / name).stat().st_size for name in names}
            (staging.path / REPORT_NAME).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
            _refuse_other_vocabulary(options, staging.path)
        staging.publish()
    finished: dict[str, Any] = json.loads((options.folder / REPORT_NAME).read_text(encoding="utf-8"))
    return finished


def _download(options: Options) -> Options:
    """Fetch what is to be fetched; return the options with the files in its place."""
    if options.download is not None:
        options = replace(options, inputs=(str(download_dump(options.download, options.folder)),))
    if options.download_tokenizer is not None:
        vocab, merges = download_tokenizer(options.download_tokenizer, options.folder)
        options = replace(options, vocab=vocab, merges=merges)
    return options


def _make(
    options: Options, sources: Sequence[Source], vocabulary: Vocabulary | None, path: Path, journal: Journal
) -> dict[str, Any]:
    """Make everything but the report in the folder ``path``."""
    seconds: dict[str, float] = {}
    report: dict[str, Any] = {"skipped": []}
    key = options.json_key if options.is_jsonl else "text"
    shard = options.shard or (0, 1)
    begin = time.perf_counter()
    if not options.is_jsonl:
        articles = path / ARTICLES_NAME
        pages, skipped = extract_articles(
            sources,
            articles,
            journal,
            workers=options.workers,
            keep_disambiguations=options.keep_disambiguations,
            shard=shard,
        )
        shard = (0, 1)  # it has been taken
        report["pages"] = pages
        report["skipped"] += skipped
        seconds["articles"] = time.perf_counter() - begin
        say(_describe_pages(pages, seconds["articles"]))
        sources = [Source(articles)]

    begin = time.perf_counter()
    trained = vocabulary is None
    vocabulary = _write_vocabulary(options, sources, key, vocabulary, path, journal)
    seconds["tokenizer"] = time.perf_counter() - begin
    note = "trained" if trained else "given"
    if trained and len(vocabulary) != options.train_tokenizer:
        note = f"trained; {options.train_tokenizer} were asked for, the text gave no more"
    say(f"tokenizer: {len(vocabulary)} tokens ({note}), {seconds['tokenizer']:.1f} s")

    begin = time.perf_counter()
    prefix = path / options.prefix_name
    tokens, skipped, lengths = encode_documents(
        sources,
        vocabulary,
        prefix,
        journal,
        key=key,
        append_eod=options.append_eod,
        workers=options.workers,
        shard=shard,
        allow_none=options.shard is not None,
    )
    if lengths.size:
        check_prefix(prefix)
    report["skipped"] += skipped
    seconds["tokens"] = time.perf_counter() - begin
    left_out = f" ({tokens['empty']} empty, {tokens['skipped']} skipped)" if tokens["empty"] + tokens["skipped"] else ""
    say(f"tokens: {tokens['tokens']} in {tokens['documents']} documents{left_out}, {seconds['tokens']:.1f} s")
    return {
        **report,
        "tokenizer": {
            "size": len(vocabulary),
            "trained": trained,
            "end_of_text": vocabulary.end_of_text,
            "append_eod": options.append_eod,
            "fingerprint": vocabulary.fingerprint,
        },
        "tokens": {**tokens, "per_document": describe_lengths(lengths)},
        "seconds": {stage: round(value, 3) for stage, value in seconds.items()},
        "versions": list_versions(),
    }


def _describe_pages(pages: dict[str, int], seconds: float) -> str:
    others = "".join(
        f", {pages[name]} {text}"
        for name, text in (
            ("other_models", "without wiki markup"),
            ("disambiguations", "disambiguations"),
            ("skipped", "skipped"),
        )
        if pages[name]
    )
    return (
        f"articles: {pages['kept']} of {pages['pages']} pages ({pages['redirects']} redirects, "
        f"{pages['other_namespaces']} in other namespaces, {pages['empty']} empty{others}), {pages['text_characters']} "
        f"characters, {seconds:.1f} s"
    )


def _write_vocabulary(
    options: Options, sources: Sequence[Source], key: str, given: Vocabulary | None, path: Path, journal: Journal
) -> Vocabulary:
    """Put the tokenizer's files beside the data, trained if none is given."""
    if given is not None and options.tokenizer is not None:
        given.write(path)
        return given
    if given is not None:
        assert options.vocab is not None
        assert options.merges is not None
        (path / VOCAB_NAME).write_bytes(options.vocab.read_bytes())
        (path / MERGES_NAME).write_bytes(options.merges.read_bytes())
        return given
    if not journal["tokenizer"]:
        assert options.train_tokenizer is not None
        texts = read_texts(sources, key)
        train_vocabulary(texts, size=options.train_tokenizer, num_threads=options.workers).write(path)
        journal["tokenizer"] = {"done": True}
    return Vocabulary.read(path / VOCAB_NAME, path / MERGES_NAME)


def _describe_source(options: Options, sources: Sequence[Source]) -> dict[str, Any] | None:
    """Describe the inputs and options that determine the output; None if the inputs cannot be known again."""
    inputs = describe_inputs(sources)
    if inputs is None:
        return None
    return {
        "format": _FORMAT,
        "name": options.output.name,
        "inputs": inputs,
        "json_key": options.json_key if options.is_jsonl else None,
        "keep_disambiguations": options.keep_disambiguations,
        "append_eod": options.append_eod,
        "vocab": _hash(options.vocab),
        "merges": _hash(options.merges),
        "tokenizer": _hash(options.tokenizer),
        "train_tokenizer": options.train_tokenizer,
    }


def _hash(path: Path | None) -> str | None:
    return None if path is None else hash_file(path)


def _read_finished(options: Options, source: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the report of finished data if they are of this source."""
    try:
        report: dict[str, Any] = json.loads((options.folder / REPORT_NAME).read_text(encoding="utf-8"))
        if report["tokens"]["documents"]:
            check_prefix(options.folder / options.prefix_name)
        same_sizes = all((options.folder / name).stat().st_size == size for name, size in report["sizes"].items())
        return report if source is not None and report["source"] == source and same_sizes else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _refuse_other_vocabulary(options: Options, staged: Path) -> None:
    """Refuse to replace the tokenizer of other data in the same folder."""
    folder = options.folder
    others = [path for path in folder.glob("*_text_document.idx") if path.stem != options.prefix_name]
    for name in (VOCAB_NAME, MERGES_NAME):
        present = folder / name
        if others and present.exists() and present.read_bytes() != (staged / name).read_bytes():
            raise ValueError(
                f"one folder must hold data of one tokenizer; {folder} has {others[0].stem}, made with another "
                f"{name}. Choose another folder with --output."
            )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        Exit code: 0 done, 1 the environment failed (disk, memory, permissions), 2 the input is bad, 3 done without
        what could not be read.
    """
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["merge"]:
        output = parse_merge(argv[1:])
        make, folder, allow_skipped = partial(merge, output), output.parent, True  # each shard has told
    else:
        options = parse_options(argv)
        make, folder, allow_skipped = partial(preprocess, options), options.folder, options.allow_skipped
    previous = signal.signal(signal.SIGTERM, _exit_on_signal)  # so that an ended batch job ends its workers
    try:
        report = make()
    except (ValueError, FileNotFoundError) as error:
        complain(str(error))
        return 2
    except (OSError, RuntimeError) as error:
        complain(f"{str(error).rstrip('.')}. What is finished is kept; start the same command again to go on.")
        return 1
    except KeyboardInterrupt:
        complain("interrupted; what is finished is kept. Start the same command again to go on.")
        return 130
    finally:
        signal.signal(signal.SIGTERM, previous)
    num_skipped = report.get("pages", {}).get("skipped", 0) + report["tokens"]["skipped"]
    if num_skipped and not allow_skipped:
        first = report["skipped"][0]
        complain(
            f"every page and line should be readable; {num_skipped} are not and were left out, the first: {first}. See "
            f"{folder / REPORT_NAME}; --allow-skipped accepts them."
        )
        return 3
    return 0


def _exit_on_signal(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
