# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""All panels of a page on one figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from nemo_sr.plotting.figures import draw_curves, new_figure
from nemo_sr.plotting.panels import Panel
from nemo_sr.plotting.runs import Run

_COLUMNS = 3
_WIDTH, _HEIGHT = 4.6, 3.0  # of a panel, in inches


def draw_panels(
    runs: Sequence[Run], sections: Mapping[str, Sequence[Panel]], *, title: str, smoothing: float = 0.0
) -> Any:
    """Return a figure with the panels of all sections and one legend.

    Args:
        runs: What to show, in the order of their colours.
        sections: What :func:`~nemo_sr.plotting.panels.choose_panels` returned for them.
        title: Of the figure.
        smoothing: Weight of :func:`~nemo_sr.plotting.curves.smooth` where it is of use.
    """
    panels = [panel for members in sections.values() for panel in members]
    columns = min(_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure, grid = new_figure(rows, columns, width=_WIDTH * columns, height=_HEIGHT * rows + 0.8)
    for axes, panel in zip(grid.flat if len(panels) > 1 else [grid], panels, strict=False):
        for index, run in enumerate(runs):
            if panel.name in run.curves:
                draw_curves(
                    axes,
                    {run.name: run.curves[panel.name]},
                    ylabel=panel.unit,
                    smoothing=smoothing if panel.smoothed else 0.0,
                    markers=panel.markers,
                    log_y=panel.log_y,
                    first=index,
                )
        axes.set_title(panel.title, fontsize=10)
        if panel.band:
            axes.axhspan(-panel.band, panel.band, color="#0072B2", alpha=0.1, linewidth=0)
        if axes.get_legend():
            axes.get_legend().remove()
    if len(panels) > 1:
        for axes in list(grid.flat)[len(panels) :]:
            axes.set_visible(False)
    figure.suptitle(title)
    handles = {
        label: handle for axes in figure.axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    if len(runs) > 1:
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(len(handles), 4))
    return figure
