# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Figures of a comparison: losses over steps, and over the learning rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nemo_sr.experiments import Figure
from nemo_sr.experiments.strategies.analysis import Comparison
from nemo_sr.experiments.strategies.statistics import draw_intervals
from nemo_sr.experiments.strategies.sweep import STRATEGIES
from nemo_sr.plotting import COLORS

LABELS = {
    "adamw_fp32": "FP32",
    "adamw_amp": "O1",
    "adamw": "O2",
    "adamw_bf16": "BF16",
    "adamw_sr": "BF16+SR",
    "adamw_sr_paper": "BF16+SR as in the paper",
}
_STYLES = {name: {"color": COLORS[i % len(COLORS)], "marker": "osD^vP"[i]} for i, name in enumerate(STRATEGIES)}


def comparison_figures(comparisons: Sequence[Comparison]) -> list[Figure]:
    """Return the figures of all corpora, a column of axes each."""
    size = (max(5.4, 3.4 * len(comparisons)), 3.4)
    return [
        Figure(
            "gaps",
            "Final validation loss over that of FP32 at the same learning rate, paired by seed; bars are 95 % "
            "intervals where there are several seeds.",
            lambda figure: _each(figure, comparisons, _draw_gaps),
            size,
        ),
        Figure(
            "curves",
            "Validation loss and perplexity over steps, each strategy at its best rate, mean over seeds.",
            lambda figure: _each(figure, comparisons, _draw_curves),
            size,
        ),
        Figure(
            "robustness",
            "Final validation loss of the first seed over the highest learning rate; what diverged is left out.",
            lambda figure: _each(figure, comparisons, _draw_robustness),
            size,
        ),
    ]


def _each(figure: Any, comparisons: Sequence[Comparison], draw: Any) -> None:
    columns = figure.subplots(1, len(comparisons), squeeze=False)[0]
    for axes, one in zip(columns, comparisons, strict=True):
        draw(axes, one)
        axes.set_title(one.corpus, fontsize=8)
    handles, labels = columns[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, fontsize=7)


def _draw_gaps(axes: Any, one: Comparison) -> None:
    for number, name in enumerate(one.strategies):
        gaps = {lr: one.difference(name, lr, "adamw_fp32", lr) for lr in one.rates}
        shown = {lr: gap for lr, gap in gaps.items() if gap is not None}
        if name == "adamw_fp32" or not shown:
            continue
        places = [lr * 1.03 ** (number - 3) for lr in shown]
        draw_intervals(axes, places, list(shown.values()), label=LABELS[name], ms=3.5, **_STYLES[name])
    axes.axhline(0, color="gray", linewidth=0.8)
    _rate_axis(axes, one)
    axes.set_ylabel("loss over FP32's (nats)")
    axes.set_yscale("symlog", linthresh=0.02)


def _draw_curves(axes: Any, one: Comparison) -> None:
    for name in one.strategies:
        lr = one.best_rate(name)
        runs = [r for r in one.results if (r.strategy, r.lr) == (name, lr) and r.loss is not None]
        values = np.mean([run.validation.values for run in runs], axis=0)
        axes.plot(runs[0].validation.steps, values, label=LABELS[name], ms=2.5, **_STYLES[name])
    axes.set(xlabel="step", ylabel="validation loss (nats per token)")
    second = axes.secondary_yaxis("right", functions=(np.exp, lambda ppl: np.log(np.maximum(ppl, 1e-9))))
    second.set_ylabel("perplexity")
    low, high = axes.get_ylim()
    ticks = [round(float(np.exp(x)), -1 if np.exp(x) >= 100 else 0) for x in np.linspace(low, high, 6)[1:]]
    second.set_yticks(ticks, [f"{tick:g}" for tick in ticks])


def _draw_robustness(axes: Any, one: Comparison) -> None:
    for name in one.strategies:
        losses = {lr: loss for lr, loss in sorted(one.first_losses(name).items()) if loss is not None}
        axes.plot(list(losses), list(losses.values()), label=LABELS[name], ms=3.5, **_STYLES[name])
    _rate_axis(axes, one)
    axes.set_ylabel("final validation loss (nats per token)")


def _rate_axis(axes: Any, one: Comparison) -> None:
    axes.set(xscale="log", xlabel="highest learning rate")
    axes.set_xticks(one.rates, [f"{lr:g}" for lr in one.rates])
    axes.set_xticks([], minor=True)
