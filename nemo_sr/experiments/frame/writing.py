# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""One experiment's folder: its page, tables and figures; and the pages of all of them."""

from __future__ import annotations

import base64
import json
import re
from html import escape
from pathlib import Path

from nemo_sr.experiments.frame.experiment import Experiment, Report, Table
from nemo_sr.experiments.frame.figures import write_figure
from nemo_sr.experiments.frame.provenance import Provenance
from nemo_sr.experiments.frame.tables import check_table, html, markdown, write_csv

_SECTION = "section.html"
_OUTCOME = "outcome.json"
_MADE = (".csv", ".md", ".png", ".svg")

_STYLE = """
body { font: 15px/1.5 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222; }
table { border-collapse: collapse; margin: 1em 0; font-size: 13px; }
caption { text-align: left; font-weight: bold; }
th, td { border: 1px solid #ccc; padding: .2em .5em; text-align: left; }
.bad { background: #fbd5d5; } .good { background: #d9f2dd; } .made { color: #777; font-size: 12px; }
img { max-width: 100%; }
"""


def write_report(experiment: Experiment, report: Report, provenance: Provenance, folder: Path) -> None:
    """Write an experiment's report.

    Args:
        experiment: Which.
        report: What it found.
        provenance: From what.
        folder: Of the report; what an earlier one left there is replaced.
    """
    for file in folder.iterdir():
        if file.suffix in _MADE:
            file.unlink()
    tables = [*([check_table(report.checks)] if report.checks else []), *report.tables]
    for table in tables:
        write_csv(table, folder / f"{table.name}.csv")
        (folder / f"{table.name}.md").write_text(markdown(table), encoding="utf-8")
    for figure in report.figures:
        write_figure(figure, folder, provenance)
    (folder / "index.md").write_text(_markdown_page(experiment, report, provenance, tables), encoding="utf-8")
    (folder / _SECTION).write_text(_html_section(experiment, report, provenance, tables, folder), encoding="utf-8")
    outcome = {
        "title": experiment.title,
        "checks": sum(check.required for check in report.checks),
        "failed": len(report.failed),
        "claims": sum(not check.required for check in report.checks),
        "refuted": sum(not check.required and not check.passed for check in report.checks),
    }
    (folder / _OUTCOME).write_text(json.dumps(outcome), encoding="utf-8")


def write_overview(output: Path, names: list[str]) -> None:
    """Write the pages of all reports that lie in a folder, in the order of ``names``: index.md, and one index.html."""
    found = [
        (name, json.loads((output / name / _OUTCOME).read_text("utf-8")))
        for name in names
        if (output / name / _OUTCOME).exists()
    ]
    rows = [
        [
            name,
            o["title"],
            f"{o['checks'] - o['failed']} of {o['checks']}",
            f"{o['claims'] - o['refuted']} of {o['claims']}",
        ]
        for name, o in found
    ]
    overview = Table("overview", "Experiments", ["experiment", "what", "checks passed", "other claims that hold"], rows)
    links = Table("overview", "", overview.columns, [[f"[{row[0]}]({row[0]}/index.md)", *row[1:]] for row in rows])
    (output / "index.md").write_text(f"# Experiments\n\n{markdown(links)}", encoding="utf-8")
    sections = "\n".join((output / name / _SECTION).read_text(encoding="utf-8") for name, _ in found)
    (output / "index.html").write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>nemo_sr: experiments</title>\n'
        f"<style>{_STYLE}</style>\n"
        f"<h1>Experiments</h1>\n{html(overview)}{sections}</html>\n",
        encoding="utf-8",
    )


def _markdown_page(experiment: Experiment, report: Report, provenance: Provenance, tables: list[Table]) -> str:
    parts = [f"# {experiment.title}", report.summary.strip()]
    parts += [f"![{figure.name}]({figure.name}.svg)\n\n{figure.caption}" for figure in report.figures]
    parts += [f"## {table.title}\n\n{markdown(table)}\n[CSV]({table.name}.csv)" for table in tables]
    parts.append(
        f"Made by `{provenance.command}` at commit {provenance.commit}; seeds {provenance.seeds}; {provenance.machine}."
    )
    return "\n\n".join(parts) + "\n"


def _html_section(
    experiment: Experiment, report: Report, provenance: Provenance, tables: list[Table], folder: Path
) -> str:
    parts = [f'<h2 id="{experiment.name}">{escape(experiment.title)}</h2>']
    parts += [f"<p>{_inline(text)}</p>" for text in report.summary.strip().split("\n\n")]
    for figure in report.figures:
        data = base64.b64encode((folder / f"{figure.name}.png").read_bytes()).decode()
        parts.append(
            f'<img alt="{escape(figure.name)}" src="data:image/png;base64,{data}"><p>{_inline(figure.caption)}</p>'
        )
    parts += [html(table) for table in tables]
    parts.append(f'<p class="made">{escape(str(provenance))}</p>')
    return "\n".join(parts)


def _inline(text: str) -> str:
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))
    return re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", text)
