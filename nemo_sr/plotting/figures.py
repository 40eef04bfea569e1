# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Figures of curves, with matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nemo_sr.plotting.curves import NoCurvesError, read_curves, smooth

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
"""Okabe and Ito's colours, which people with any colour vision can tell apart, the strongest on white first."""

_LINES = ("-", "--", "-.", ":")
_MARKERS = "osD^v"


def new_figure(rows: int = 1, columns: int = 1, *, width: float = 7.0, height: float = 4.5) -> tuple[Any, Any]:
    """Return a matplotlib figure and its axes, for files only: no window is ever opened.

    Args:
        rows: Rows of axes.
        columns: Columns of axes.
        width: Of the whole figure, in inches.
        height: Of the whole figure, in inches.

    Returns:
        The figure; its axes, one or an array as :func:`matplotlib.pyplot.subplots` has it.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns)


def draw_curves(
    axes: Any,
    curves: Mapping[str, tuple[Any, Any]],
    *,
    xlabel: str = "step",
    ylabel: str = "",
    title: str = "",
    smoothing: float = 0.0,
    markers: bool = False,
    log_y: bool = False,
    first: int = 0,
) -> None:
    """Draw curves over each other, each with a colour of its own and, past the last colour, another kind of line.

    Args:
        axes: Matplotlib axes to draw into.
        curves: Steps and values by label; a label that begins with ``_`` is left out of the legend. What is not finite
            leaves a gap.
        xlabel: What the steps are, with their unit.
        ylabel: What the values are, with their unit.
        title: Of the axes.
        smoothing: Weight of :func:`~nemo_sr.plotting.curves.smooth`; the values themselves stay visible, pale.
        markers: Mark every point, for few of them.
        log_y: Logarithmic values. Values that are not positive leave a gap.
        first: Number of the first curve's colour.
    """
    for index, (label, (steps, values)) in enumerate(curves.items(), start=first):
        shown = np.where(np.isfinite(values), np.asarray(values, dtype=np.float64), np.nan)
        style: dict[str, Any] = {
            "color": COLORS[index % len(COLORS)],
            "linestyle": _LINES[index // len(COLORS) % len(_LINES)],
        }
        if markers or len(shown) == 1:
            style |= {"marker": _MARKERS[index % len(_MARKERS)], "markersize": 4}
        if smoothing:
            axes.plot(steps, shown, color=style["color"], alpha=0.25, linewidth=0.8)
            shown = smooth(shown, smoothing)
        # Later curves lie on earlier ones, which are wider: none hides another that has the same values.
        axes.plot(steps, shown, label=label, linewidth=max(1.2, 2.4 - 0.6 * index), **style)
    axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
    if log_y:
        axes.set_yscale("log")
    axes.grid(alpha=0.3)
    if len(axes.get_legend_handles_labels()[0]) > 1:
        axes.legend()


def save_figure(figure: Any, target: Path) -> Path:
    """Write a figure as the suffix of `target` says (.png, .svg, .pdf), making its folder; return where it is."""
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=120)
    return target


def plot_losses(log_dir: Path, target: Path) -> bool:
    """Draw training and validation loss over the steps from a TensorBoard log, all of a run's starts together.

    Args:
        log_dir: Folder with the event files.
        target: The PNG to write.

    Returns:
        Whether there was a loss to draw.
    """
    try:
        curves = read_curves(log_dir)
    except NoCurvesError:
        return False
    if not curves.keys() & {"reduced_train_loss", "val_loss"}:
        return False
    figure, axes = new_figure()
    for index, (name, label) in enumerate({"reduced_train_loss": "training", "val_loss": "validation"}.items()):
        if name in curves:
            draw_curves(
                axes, {label: curves[name]}, ylabel="loss (nats per token)", markers=name == "val_loss", first=index
            )
    save_figure(figure, target)
    return True
