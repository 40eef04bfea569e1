# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Tables as CSV, Markdown and HTML."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from html import escape
from pathlib import Path

from nemo_sr.experiments.frame.experiment import Cell, Check, Table


def check_table(checks: Sequence[Check]) -> Table:
    """Return checks as a table."""
    return Table(
        name="checks",
        title="Checks",
        columns=["statement", "expected", "measured", "standard error", "verdict"],
        rows=[[c.statement, c.expected, c.measured, c.standard_error, c.verdict] for c in checks],
    )


def write_csv(table: Table, file: Path) -> None:
    """Write a table with every digit: a float's shortest form that reads back to the same bits."""
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(table.columns)
        writer.writerows([_exact(cell) for cell in row] for row in table.rows)


def markdown(table: Table) -> str:
    """Return a table as Markdown, four digits a number."""
    lines = [table.columns, ["---"] * len(table.columns), *([_short(cell) for cell in row] for row in table.rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def html(table: Table) -> str:
    """Return a table as HTML, four digits a number."""
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    body = "\n".join(
        "<tr>" + "".join(f"<td{_mark(cell)}>{escape(_short(cell))}</td>" for cell in row) + "</tr>"
        for row in table.rows
    )
    return f"<table><caption>{escape(table.title)}</caption><tr>{head}</tr>\n{body}\n</table>\n"


def _mark(cell: Cell) -> str:
    return ' class="bad"' if cell in ("FAIL", "does not hold") else ' class="good"' if cell in ("pass", "holds") else ""


def _exact(cell: Cell) -> str:
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return "" if cell is None else repr(cell) if isinstance(cell, float) else str(cell)


def _short(cell: Cell) -> str:
    if isinstance(cell, float) and not isinstance(cell, bool):
        return f"{cell:.4g}"
    return "-" if cell is None else _exact(cell)
