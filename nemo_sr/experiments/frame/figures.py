# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Figures as PNG and SVG, with their provenance, and without dates: the same bits each time."""

from __future__ import annotations

import io
import textwrap
from pathlib import Path

from nemo_sr.experiments.frame.experiment import Figure
from nemo_sr.experiments.frame.provenance import Provenance

_STYLE = {
    "svg.hashsalt": "nemo_sr",
    "svg.fonttype": "none",
    "font.size": 8,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.2,
    "path.simplify_threshold": 0.5,
}


def write_figure(figure: Figure, folder: Path, provenance: Provenance) -> None:
    """Write a figure as NAME.png and NAME.svg.

    Raises:
        RuntimeError: matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as Canvas
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise RuntimeError(
            "figures need matplotlib, which is not installed: pip install 'nemo_sr[experiments]'"
        ) from error
    with matplotlib.rc_context(_STYLE):
        canvas = Canvas(figsize=figure.size, layout="constrained")
        FigureCanvasAgg(canvas)
        figure.draw(canvas)
        canvas.supxlabel(textwrap.fill(str(provenance), int(figure.size[0] * 21)), fontsize=5, color="gray")
        described = {"Description": str(provenance)}
        for ending, metadata in (("png", described), ("svg", {"Date": None, **described})):
            data = io.BytesIO()
            canvas.savefig(data, format=ending, dpi=150, metadata=metadata)
            (folder / f"{figure.name}.{ending}").write_bytes(data.getvalue())
