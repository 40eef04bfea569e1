# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The experiments' part of the documentation: text, checks and figures between two marks of a page."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from nemo_sr.experiments.frame.experiment import Experiment, Report, Table
from nemo_sr.experiments.frame.provenance import Provenance
from nemo_sr.experiments.frame.tables import check_table, markdown

BEGIN = "<!-- made by python -m nemo_sr.experiments {page} --docs docs -->"
END = "<!-- end -->"


def require_pages(chosen: Sequence[Experiment], known: Sequence[Experiment], documents: Path) -> None:
    """Check, before anything is computed, that pages can be written.

    Args:
        chosen: Experiments that are asked for.
        known: All experiments.
        documents: Folder of the documentation.

    Raises:
        ValueError: not all of a page are chosen, or the page is not there or has not both marks.
    """
    for page in sorted({experiment.page for experiment in chosen}):
        missing = [one.name for one in known if one.page == page and one not in chosen]
        if missing:
            raise ValueError(
                f"--docs needs all experiments of page {page}; {', '.join(missing)} missing. Name the page."
            )
        file, marks = documents / f"{page}.md", (BEGIN.format(page=page), END)
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        if not all(mark in text for mark in marks):
            raise ValueError(f"{file} must have the lines {' and '.join(marks)}; it has not. Add them.")


def write_documents(
    results: Sequence[tuple[Experiment, Report, Provenance]], output: Path, documents: Path
) -> list[Path]:
    """Write what experiments found into the pages that they belong to.

    Args:
        results: Experiments with their reports; all of a page, in order.
        output: Folder of the reports, which has the figures.
        documents: Folder of the documentation; figures go into ``figures`` below it.

    Returns:
        The pages.
    """
    sections: dict[str, list[str]] = {}
    figures = documents / "figures"
    figures.mkdir(exist_ok=True)
    for experiment, report, provenance in results:
        sections.setdefault(experiment.page, []).append(_section(experiment, report, provenance))
        for name in (figure.name for figure in report.figures):
            shutil.copy(output / experiment.name / f"{name}.svg", figures / f"{experiment.name}-{name}.svg")
    for page, parts in sections.items():
        file = documents / f"{page}.md"
        before, mark, rest = file.read_text(encoding="utf-8").partition(BEGIN.format(page=page))
        after = rest.partition(END)[2]
        overview = markdown(overview_table([(one, report) for one, report, _ in results if one.page == page]))
        text = f"{before}{mark}\n\n{overview}\n" + "\n".join(parts) + f"\n{END}{after}"
        file.write_text(text, encoding="utf-8")
    return [documents / f"{page}.md" for page in sections]


def overview_table(results: Sequence[tuple[Experiment, Report]]) -> Table:
    """Return how many checks of each experiment pass, and how many other claims hold."""
    rows = []
    for experiment, report in results:
        required = [check.passed for check in report.checks if check.required]
        others = [check.passed for check in report.checks if not check.required]
        words = [f"{sum(passed)} of {len(passed)}" if passed else "-" for passed in (required, others)]
        rows.append([experiment.title, *words])
    return Table("overview", "Overview", ["subject", "checks passed", "other claims that hold"], rows)


def _section(experiment: Experiment, report: Report, provenance: Provenance) -> str:
    parts = [f"## {experiment.title}", f"`{provenance.command}`", report.summary.strip()]
    parts += [f"![{one.caption}](figures/{experiment.name}-{one.name}.svg)" for one in report.figures]
    parts += [f"{table.title.rstrip('.')}:\n\n{markdown(table)}" for table in report.tables if table.documented]
    parts.append(markdown(check_table(report.checks)))
    parts.append(f"Commit {provenance.commit}; seeds {provenance.seeds}; {provenance.machine}.")
    return "\n\n".join(parts) + "\n"
