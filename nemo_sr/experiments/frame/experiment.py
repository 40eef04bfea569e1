# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What an experiment is, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nemo_sr.experiments.frame.lab import Lab

Cell = str | int | float | bool | None


@dataclass(frozen=True)
class Table:
    """Rows of numbers and words; written as CSV with every digit, and as Markdown with four.

    Args:
        name: Of the files, without an ending.
        title: One line.
        columns: Their headings, units among them.
        rows: One cell for each column.
        documented: Whether it is shown in the documentation too.
    """

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    documented: bool = False

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(
                    f"a row of table {self.name!r} must have {len(self.columns)} cells, one for each column; "
                    f"got {len(row)}: {list(row)}."
                )


@dataclass(frozen=True)
class Figure:
    """A picture.

    Args:
        name: Of the files, without an ending.
        caption: What it shows.
        draw: Draws it into an empty matplotlib Figure.
        size: Width and height in inches.
    """

    name: str
    caption: str
    draw: Callable[[Any], None]
    size: tuple[float, float] = (6.4, 3.6)


@dataclass(frozen=True)
class Check:
    """A statement beside what was measured.

    Args:
        statement: What is claimed, in one sentence.
        expected: Its value; a string for an exact fraction or a condition.
        measured: What was found.
        passed: Whether the two agree.
        standard_error: Of ``measured``; None where the check is exact.
        required: False for a claim that may turn out not to hold here: it is reported, and is no failure.
    """

    statement: str
    expected: Cell
    measured: Cell
    passed: bool
    standard_error: float | None = None
    required: bool = True

    @property
    def verdict(self) -> str:
        """In one or three words."""
        if self.required:
            return "pass" if self.passed else "FAIL"
        return "holds" if self.passed else "does not hold"


@dataclass(frozen=True)
class Report:
    """What an experiment found.

    Args:
        summary: Paragraphs of Markdown (text, ``code`` and **bold** only), their numbers computed.
        checks: Statements with verdicts.
        tables: Further tables.
        figures: Pictures.
    """

    summary: str
    checks: Sequence[Check] = field(default_factory=list)
    tables: Sequence[Table] = field(default_factory=list)
    figures: Sequence[Figure] = field(default_factory=list)

    @property
    def failed(self) -> list[Check]:
        """Required checks that failed."""
        return [check for check in self.checks if check.required and not check.passed]


@dataclass(frozen=True)
class Experiment:
    """One experiment.

    Args:
        name: On the command line and of its folder: lower case, with underscores.
        title: One line.
        page: The page of the documentation it belongs to; on the command line it stands for all of them.
        run: Computes the report.
        sources: Files and folders beside the package on which the parts depend besides what their module imports.
    """

    name: str
    title: str
    page: str
    run: Callable[[Lab], Report]
    sources: Sequence[str] = ()
