# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The curves of training runs, read from their event files and drawn. Imports neither Megatron nor ``training``."""

from nemo_sr.plotting.curves import Curve, NoCurvesError, read_curves, smooth
from nemo_sr.plotting.figures import COLORS, draw_curves, new_figure, plot_losses, save_figure

__all__ = [
    "COLORS",
    "Curve",
    "NoCurvesError",
    "draw_curves",
    "new_figure",
    "plot_losses",
    "read_curves",
    "save_figure",
    "smooth",
]
