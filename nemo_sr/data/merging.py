# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Joining the shards that many machines made: the bytes are those of one run over everything.

python scripts/preprocess_wikipedia.py --shard I/N ...      (for I = 0 ... N - 1, anywhere, in any order)
python scripts/preprocess_wikipedia.py merge --output DIR/NAME
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nemo_sr.data.indexed import check_prefix, choose_type, read_lengths, write_index
from nemo_sr.data.journal import MAX_LISTED
from nemo_sr.data.options import ARTICLES_NAME, DEFAULT_OUTPUT, prefix_name, shard_folder
from nemo_sr.data.progress import say
from nemo_sr.data.report import REPORT_NAME, describe_lengths, hash_file
from nemo_sr.data.staging import Staging
from nemo_sr.data.vocabulary import MERGES_NAME, VOCAB_NAME


def merge(output: Path) -> dict[str, Any]:
    """Join the shards of DIR/NAME into one set of outputs, completely or not at all.

    Args:
        output: DIR/NAME, as every shard had it.

    Returns:
        What report.json holds.

    Raises:
        ValueError: a shard is missing, incomplete, or was made from other inputs or with other options.
        FileNotFoundError: a file of a shard is missing.
        OSError: a file cannot be written.
    """
    begin = time.perf_counter()
    prefix = prefix_name(output)
    folders, reports = _read_shards(output)
    source = reports[0]["source"]
    has_articles = source["json_key"] is None
    tokens = [prefix + ".bin", prefix + ".idx"]
    names = [*([ARTICLES_NAME] if has_articles else []), VOCAB_NAME, MERGES_NAME, REPORT_NAME, *tokens]
    with Staging(output.parent, names) as staging:
        for name in names:
            if name in (ARTICLES_NAME, prefix + ".bin"):
                with (staging.path / name).open("wb") as joined:
                    for folder in folders:
                        with (folder / name).open("rb") as part:
                            shutil.copyfileobj(part, joined, 1 << 20)
            elif name in (VOCAB_NAME, MERGES_NAME):
                shutil.copyfile(folders[0] / name, staging.path / name)
        lengths = np.concatenate([read_lengths(folder / prefix) for folder in folders])
        size = reports[0]["tokenizer"]["size"]
        write_index(staging.path / f"{prefix}.idx", lengths, choose_type(size))
        check_prefix(staging.path / prefix)
        report = _join_reports(reports)
        report["tokens"]["per_document"] = describe_lengths(lengths)
        report["seconds"]["merge"] = round(time.perf_counter() - begin, 3)
        report["sizes"] = {name: (staging.path / name).stat().st_size for name in names if name != REPORT_NAME}
        (staging.path / REPORT_NAME).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        staging.publish()
    say(
        f"{output.parent / prefix}.bin/.idx: {report['tokens']['tokens']} tokens in {report['tokens']['documents']} "
        f"documents, joined from {len(folders)} shards, which may be removed now"
    )
    return report


def _read_shards(output: Path) -> tuple[list[Path], list[dict[str, Any]]]:
    """Find all shards and check that they are complete and belong together."""
    parent = output.parent
    found = [re.fullmatch(r"shard-(\d+)-of-(\d+)", path.name) for path in parent.glob("shard-*-of-*")]
    counts = {int(match[2]) for match in found if match}
    if len(counts) != 1:
        what = f"there are some of {sorted(counts)}: remove the others" if counts else "there are none: make them first"
        raise ValueError(
            f"{parent} must hold the shards of one run, shard-I-of-N as --shard I/N makes them; {what}. Or change "
            "--output."
        )
    count = counts.pop()
    folders = [shard_folder(output, (number, count)) for number in range(count)]
    missing = [number for number, folder in enumerate(folders) if not (folder / REPORT_NAME).exists()]
    if missing:
        raise ValueError(
            f"all {count} shards must be complete; {len(missing)} are not: {', '.join(map(str, missing[:20]))}. Run "
            "--shard I/N for each of them."
        )
    reports = [json.loads((folder / REPORT_NAME).read_text(encoding="utf-8")) for folder in folders]
    for folder, report in zip(folders, reports, strict=True):
        different = [key for key, value in reports[0]["source"].items() if report["source"].get(key) != value]
        if different:
            raise ValueError(
                f"shards must be made from the same inputs with the same options; {folder} differs from {folders[0]} "
                f"in {', '.join(different)}. Make it again."
            )
        for name, size in report["sizes"].items():
            if (folder / name).stat().st_size != size:
                raise ValueError(
                    f"a shard must be as its run left it, with {size} bytes in {folder / name}; it has "
                    f"{(folder / name).stat().st_size}. Make it again with --force."
                )
        if report["tokens"]["documents"]:
            check_prefix(folder / prefix_name(output))
    if not any(report["tokens"]["documents"] for report in reports):
        raise ValueError("the shards must hold at least one document; they hold none. Check their inputs.")
    return folders, reports


def _join_reports(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    joined = dict(reports[0])
    for part in ("pages", "tokens", "seconds"):
        if part in joined:
            sums: Counter[str] = Counter()
            for report in reports:
                sums.update({key: value for key, value in report[part].items() if key != "per_document"})
            joined[part] = {key: sums[key] for key in joined[part] if key != "per_document"}
    joined["skipped"] = [entry for report in reports for entry in report["skipped"]][:MAX_LISTED]
    joined["inputs"] = [
        {**entry, "sha256": hash_file(Path(entry["name"])) if Path(entry["name"]).is_file() else None}
        for entry in joined["inputs"]
    ]
    joined["shards"] = len(reports)
    return joined


def parse_merge(argv: Sequence[str]) -> Path:
    """Read the command line of the subcommand; returns DIR/NAME."""
    parser = argparse.ArgumentParser(
        prog="preprocess_wikipedia.py merge",
        description="Join the shards that --shard I/N made, byte for byte as one run.",
    )
    parser.add_argument(
        "--output", type=Path, default=Path(DEFAULT_OUTPUT), metavar="DIR/NAME", help="as for the shards (%(default)s)"
    )
    return Path(parser.parse_args(argv).output)
