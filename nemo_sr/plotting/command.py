# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Plot the curves of runs over each other: a PNG, and an HTML page that opens without a network."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from nemo_sr.plotting.curves import NoCurvesError, find_event_files
from nemo_sr.plotting.figures import save_figure
from nemo_sr.plotting.page import find_notes, make_page
from nemo_sr.plotting.panels import choose_panels
from nemo_sr.plotting.runs import read_runs
from nemo_sr.plotting.sheet import draw_panels

_EPILOG = """
A run is the folder that it was started with (runs/NAME). All of its starts count together; a run that is still going
on is shown as far as it has come.

  python scripts/plot_run.py runs/gpt_tiny_cpu
  python scripts/plot_run.py runs/* --smooth 0.6 --output comparison.html
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status: 0, or 2 for what cannot be plotted."""
    parser = argparse.ArgumentParser(
        prog="plot_run.py", description=__doc__, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run, runs/NAME")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE.html",
        help="the page; the PNG gets the same name. Default: curves.html in the run's folder, or in the one above all",
    )
    parser.add_argument(
        "--smooth",
        type=float,
        default=0.0,
        metavar="WEIGHT",
        help="share of the running average that a point keeps, in [0, 1); the points stay visible. Default: 0, none",
    )
    parser.add_argument("--title", help="title of page and figure. Default: the runs' names")
    options = parser.parse_args(argv)
    try:
        pages = _plot(options.runs, options.output, options.smooth, options.title)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 2
    for kind, path in pages.items():
        print(f"  {kind:6} {path}")  # noqa: T201
    return 0


def _plot(folders: Sequence[Path], output: Path | None, smoothing: float, title: str | None) -> Mapping[str, Path]:
    if not 0 <= smoothing < 1:
        raise ValueError(f"--smooth must be at least 0 and less than 1; it is {smoothing:g}. Take 0.6, say.")
    page = output or _default_output(folders)
    if page.suffix != ".html":
        raise ValueError(
            f"--output must name the page, FILE.html; it is {page}. Add .html; the PNG is written beside it."
        )
    try:
        runs = read_runs(folders)
    except NoCurvesError as error:
        raise ValueError(f"{error}{_runs_below(folders)}") from None
    for note in find_notes(runs):
        print(f"note: {note}", file=sys.stderr)  # noqa: T201
    sections = choose_panels(runs)
    if not sections:
        raise ValueError(
            f"At least one run must have logged something; {', '.join(run.name for run in runs)} "
            f"{'have' if len(runs) > 1 else 'has'} not. Wait until trainer.log_every_n_steps steps are done."
        )
    title = title or _title([run.name for run in runs])
    figure = draw_panels(runs, sections, title=title, smoothing=smoothing)
    picture = save_figure(figure, page.with_suffix(".png"))
    page.write_text(make_page(runs, sections, title=title, smoothing=smoothing), encoding="utf-8")
    return {"page": page, "figure": picture}


def _default_output(folders: Sequence[Path]) -> Path:
    if len(folders) == 1:
        return folders[0] / "curves.html"
    return Path(os.path.commonpath([folder.resolve().parent for folder in folders])) / "curves.html"


def _title(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{names[0]} and {len(names) - 1} other runs"


def _runs_below(folders: Sequence[Path]) -> str:
    """Return where there are runs instead, if folders above those of runs were given."""
    for folder in folders:
        if folder.is_dir() and not find_event_files(folder):
            below = sorted(path for path in folder.iterdir() if path.is_dir() and find_event_files(path))
            if below:
                return f" These are runs: {' '.join(map(str, below))}."
    return ""


if __name__ == "__main__":
    sys.exit(main())
