# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""One HTML file with the curves of runs, which opens without a network: styles, program and numbers are inside."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nemo_sr.plotting.curves import Curve
from nemo_sr.plotting.figures import COLORS
from nemo_sr.plotting.panels import Panel
from nemo_sr.plotting.runs import Run, find_differences

MOST_POINTS = 2000
"""Points of a curve on the page; of longer ones the extremes of each stretch are kept."""

_HERE = Path(__file__).parent
_DIGITS = 6  # of a value; what is logged is FP32


def make_page(
    runs: Sequence[Run], sections: Mapping[str, Sequence[Panel]], *, title: str, smoothing: float = 0.0
) -> str:
    """Return the page.

    Args:
        runs: What to show, in the order of their colours.
        sections: What :func:`~nemo_sr.plotting.panels.choose_panels` returned for them.
        title: Of the page.
        smoothing: Where the slider stands at first, in [0, 1).
    """
    panels = [panel for members in sections.values() for panel in members]
    data = {
        "runs": [run.name for run in runs],
        "colors": len(COLORS),
        "smoothing": smoothing,
        "panels": [_describe(f"panel-{index}", panel, runs) for index, panel in enumerate(panels)],
    }
    return Template(_read("page.html")).substitute(
        title=escape(title),
        subtitle=f"{len(runs)} run{'s' * (len(runs) > 1)}, colours as in the table. Curves over optimizer steps.",
        style=_read("page.css"),
        program=_read("page.js"),
        runs=_table_of_runs(runs),
        notes="\n".join(f'<p class="warn">{escape(note)}</p>' for note in find_notes(runs)),
        differences=_table_of_differences(runs),
        sections=_sections(sections),
        data=_as_json(data),
    )


def find_notes(runs: Sequence[Run]) -> list[str]:
    """Return what a reader must know of the runs: unfinished ones, and ones without curves or settings."""
    notes = []
    for run in runs:
        if not run.curves:
            notes.append(f"{run.name} has logged nothing yet: there is no curve of it.")
        elif run.is_finished is False:
            notes.append(f"{run.name} is unfinished: it is at step {run.step} of {run.max_steps}.")
        if not run.config:
            notes.append(f"{run.name} holds no config.yaml: its settings are not known.")
    return notes


def thin(curve: Curve, most: int = MOST_POINTS) -> Curve:
    """Return at most `most` points of a curve: of each stretch its lowest and its highest, so that spikes stay."""
    count = len(curve.steps)
    if count <= most:
        return curve
    kept = {0, count - 1}
    for stretch in np.array_split(np.arange(count), most // 2 - 1):
        values = curve.values[stretch]
        if np.isfinite(values).all():
            kept |= {int(stretch[values.argmin()]), int(stretch[values.argmax()])}
        else:  # a gap stays a gap
            kept |= {int(stretch[0]), int(stretch[np.flatnonzero(~np.isfinite(values))[0]])}
    chosen = np.array(sorted(kept))
    return Curve(curve.steps[chosen], curve.values[chosen])


def _describe(identity: str, panel: Panel, runs: Sequence[Run]) -> dict[str, Any]:
    curves = []
    for number, run in enumerate(runs):
        if panel.name in run.curves:
            curve = thin(run.curves[panel.name])
            curves.append({"run": number, "x": curve.steps.tolist(), "y": _numbers(curve.values)})
    return {
        "id": identity,
        "name": panel.name,
        "title": panel.title,
        "log": panel.log_y,
        "band": panel.band,
        "markers": panel.markers,
        "smoothed": panel.smoothed,
        "curves": curves,
    }


def _numbers(values: NDArray[np.float64]) -> list[float | None]:
    return [float(f"{value:.{_DIGITS}g}") if np.isfinite(value) else None for value in values]


def _as_json(data: Any) -> str:
    # A run's name must not end the element that holds it.
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _table_of_runs(runs: Sequence[Run]) -> str:
    labels = list(describe_run(runs[0]))
    head = "".join(f'<th{_numeric(label)} scope="col">{escape(label)}</th>' for label in labels)
    rows = []
    for number, run in enumerate(runs):
        cells = "".join(
            f'<td{_numeric(label)} data-label="{escape(label)}">{escape(text)}</td>'
            for label, text in describe_run(run).items()
        )
        rows.append(f'<tr><th scope="row" data-run="{number}">{escape(run.name)}</th>{cells}</tr>')
    body = "\n".join(rows)
    return (
        f'<table class="runs"><thead><tr><th scope="col">Run</th>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>'
    )


def describe_run(run: Run) -> dict[str, str]:
    """Return what the table of runs says of one, by column."""
    best, memory, speed = run.best_val_loss, run.peak_memory_mib, run.tokens_per_second
    return {
        "Strategy": run.strategy or "-",
        "Peak learning rate": "-" if run.learning_rate is None else f"{run.learning_rate:.3g}",
        "Layout": run.layout or "-",
        "Progress": run.progress,
        "Final val loss": "-" if run.final_val_loss is None else f"{run.final_val_loss:.4f}",
        "Best val loss": "-" if best is None else f"{best[0]:.4f} (step {best[1]})",
        "Tokens/s": "-" if speed is None else f"{speed:,.0f}",
        "Peak memory": "-" if memory is None else f"{memory:,.0f} MiB",
    }


def _numeric(label: str) -> str:
    return "" if label in ("Strategy", "Layout", "Progress") else ' class="number"'


def _table_of_differences(runs: Sequence[Run]) -> str:
    differences = find_differences(runs)
    if not differences:
        return ""
    head = "".join(f'<th scope="col">{escape(run.name)}</th>' for run in runs)
    rows = "\n".join(
        f'<tr><td class="key">{escape(key)}</td>'
        + "".join(f"<td><code>{escape(_as_yaml(value))}</code></td>" for value in values)
        + "</tr>"
        for key, values in differences.items()
    )
    names = ", ".join(f"<code>{escape(key)}</code>" for key in differences)
    return (
        f'<details><summary>Configuration keys that differ: {names}</summary>\n<div class="scroll"><table><thead><tr>'
        f'<th scope="col">Key</th>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div></details>'
    )


def _as_yaml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _sections(sections: Mapping[str, Sequence[Panel]]) -> str:
    parts, number = [], 0
    for title, panels in sections.items():
        figures = []
        for panel in panels:
            details = [panel.unit, f"within ±{panel.band:g}: chance" if panel.band else ""]
            caption = f"{escape(panel.title)} <small>{escape(', '.join(filter(None, details)))}</small>"
            figures.append(f'<figure id="panel-{number}"><figcaption>{caption}</figcaption></figure>')
            number += 1
        parts.append(f'<h2>{escape(title)}</h2>\n<div class="panels">\n' + "\n".join(figures) + "\n</div>")
    return "\n".join(parts)
