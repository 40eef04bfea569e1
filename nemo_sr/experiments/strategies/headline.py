# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Writes the table of strategies into the README, from the CSV file that the documentation keeps.

Usage: python -m nemo_sr.experiments.strategies.headline [REPORTS]

With REPORTS, the folder that ``python -m nemo_sr.experiments strategies`` wrote, the file is taken from there first.
"""

from __future__ import annotations

import csv
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from nemo_sr.experiments.frame.sources import ROOT
from nemo_sr.experiments.strategies.figures import LABELS

README = ROOT / "README.md"
KEPT = ROOT / "docs" / "figures" / "strategies-final.csv"
BEGIN = "<!-- made by python -m nemo_sr.experiments.strategies.headline -->\n"
END = "<!-- end -->\n"
_HEAD = (
    "text",
    "strategy",
    "best LR",
    "validation loss",
    "perplexity",
    "over FP32",
    "stable LRs",
    "bytes a parameter",
    "GiB a GPU at 6.7B, planned",
)


def headline(file: Path) -> str:
    """Return the README's table.

    Args:
        file: The table "final" of a report, as CSV.
    """
    with file.open(encoding="utf-8", newline="") as stream:
        rows = [_cells(row) for row in csv.DictReader(stream)]
    lines = [_HEAD, ("---",) * len(_HEAD), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cells(row: Mapping[str, str]) -> tuple[str, ...]:
    over = f"{float(row['over FP32']):+.4f}{_error(row['over FP32 ±'])}" if row["over FP32"] else "-"
    return (
        row["corpus"],
        f"{LABELS[row['strategy']]} (`{row['strategy']}`)",
        f"{float(row['best LR']):g}",
        f"{float(row['loss']):.4f}{_error(row['loss ±'])} (n={row['n']})",
        f"{float(row['perplexity']):.1f}",
        over,
        f"{float(row['stable from']):g} to {float(row['stable to']):g}",
        f"{float(row['bytes a parameter']):.0f}" if row["bytes a parameter"] else "-",
        f"{float(row['planned, bytes']) / 2**30:.1f}" if row["planned, bytes"] else "-",
    )


def _error(text: str) -> str:
    return f" ± {float(text):.4f}" if text else ""


def write_headline(readme: Path, table: str) -> None:
    """Put the table between its marks.

    Raises:
        ValueError: the README has not both marks.
    """
    text = readme.read_text(encoding="utf-8")
    before, mark, rest = text.partition(BEGIN)
    if not mark or END not in rest:
        raise ValueError(f"{readme} must have the lines {BEGIN.strip()} and {END.strip()}; it has not. Add them.")
    readme.write_text(before + mark + table + END + rest.partition(END)[2], encoding="utf-8")


def main(arguments: list[str]) -> None:
    """Run the command line."""
    if arguments:
        KEPT.parent.mkdir(exist_ok=True)
        shutil.copy(Path(arguments[0]) / "strategies" / "final.csv", KEPT)
    write_headline(README, headline(KEPT))


if __name__ == "__main__":
    main(sys.argv[1:])
