# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Which curves are shown, under which words, in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nemo_sr.plotting.runs import Run


@dataclass(frozen=True)
class Panel:
    """One pair of axes, in which the curves of one name lie over each other."""

    name: str
    """The curves' name in the log."""

    title: str
    unit: str = ""
    """Of the values; "" for a share or a number."""

    log_y: bool = False
    band: float | None = None
    """Values from minus this to this are what chance alone gives."""

    markers: bool = False
    smoothed: bool = False
    """Whether smoothing is of use: not for what is a schedule or a sum."""

    only_if_positive: bool = False
    """Leave it out as long as all values are 0."""


SECTIONS: dict[str, tuple[Panel, ...]] = {
    "Loss": (
        Panel("reduced_train_loss", "Training loss", "nats per token", smoothed=True),
        Panel("val_loss", "Validation loss", "nats per token", markers=True),
        Panel("loss_spikes", "Loss spikes so far", only_if_positive=True),
        Panel("skipped_steps", "Steps skipped so far", only_if_positive=True),
    ),
    "Optimization": (
        Panel("lr", "Learning rate"),
        Panel("grad_norm", "Gradient norm before clipping", log_y=True, smoothed=True),
    ),
    "Stochastic rounding": (
        Panel("sr/share_lost", "Weights whose update nearest would lose", "share", smoothed=True),
        Panel("sr/share_moved", "Weights that a step moves", "share", smoothed=True),
        Panel("sr/update_in_ulps", "Mean |update|", "ulp", log_y=True, smoothed=True),
        Panel("sr/noise_to_update", "Rounding noise against the update", "ratio of 2-norms", log_y=True, smoothed=True),
        Panel("sr/bias_along_update", "Rounding bias along the update", "standard errors", band=5.0),
        Panel("sr/bias_from_zero", "Rounding bias away from zero", "standard errors", band=5.0),
        Panel("sr/exp_avg_sq_share_lost", "Second moments whose change nearest would lose", "share", smoothed=True),
        Panel("sr/exp_avg_sq_shortfall", "Shortfall of a nearest-rounded second moment", "share", smoothed=True),
    ),
    "Speed": (
        Panel("tokens_per_sec", "Throughput", "tokens/s", smoothed=True),
        Panel("train_step_timing in s", "Time of a step", "s", smoothed=True),
        Panel("tflops_per_sec_per_gpu", "Floating point operations", "TFLOP/s per rank", smoothed=True),
        Panel("mfu", "Model FLOPs utilization", "share", smoothed=True),
        Panel("peak_memory_mib", "Peak memory of rank 0", "MiB"),
    ),
}
"""What is known of the log's names. Names of :mod:`nemo_sr.training.metrics` that are not here follow from others."""

_TELEMETRY = "Stochastic rounding"


def choose_panels(runs: Sequence[Run]) -> dict[str, list[Panel]]:
    """Return the panels that at least one run has curves for, by section; every name that starts with sr/ has one."""
    names = sorted({name for run in runs for name in run.curves})
    sections = {}
    for title, known in SECTIONS.items():
        panels = []
        for panel in known:
            if panel.name in names and _is_of_use(panel, runs):
                panels.append(panel)
            panels.extend(_of_group(panel, name) for name in names if name.startswith(f"{panel.name}/"))
        if title == _TELEMETRY:
            shown = {panel.name for panel in (*known, *panels)}
            panels.extend(_unknown(name) for name in names if name.startswith("sr/") and name not in shown)
        if panels:
            sections[title] = panels
    return sections


def _of_group(whole: Panel, name: str) -> Panel:
    """Return the panel of NAME/GROUP, which is NAME of a group of layers."""
    return replace(whole, name=name, title=f"{whole.title}: {name.removeprefix(f'{whole.name}/')}")


def _unknown(name: str) -> Panel:
    return Panel(name, name.removeprefix("sr/").replace("_", " "), smoothed=True)


def _is_of_use(panel: Panel, runs: Sequence[Run]) -> bool:
    if not panel.only_if_positive:
        return True
    return any((run.curves[panel.name].values > 0).any() for run in runs if panel.name in run.curves)
