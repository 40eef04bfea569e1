# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What a sweep has found: the best rate and the stable range of each strategy, as Markdown, CSV and a figure."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_sr.experiments.strategies.statistics import stable_range
from nemo_sr.plotting import COLORS, new_figure, save_figure
from nemo_sr.sweeping.outcome import Outcome
from nemo_sr.sweeping.running import describe

REFERENCE = "adamw"
"""The strategy that others' rates are compared with: mixed precision, O2."""


@dataclass(frozen=True)
class Finding:
    """What a strategy's runs say together."""

    strategy: str
    outcomes: tuple[Outcome, ...]
    """By learning rate."""

    best: Outcome | None
    """With the lowest loss; None if none has finished."""

    stable: tuple[float, float] | None
    """Lowest and highest learning rate of the unbroken range around the best whose losses are within the tolerance."""

    @property
    def range_in_words(self) -> str:
        """The stable range, with a mark where the grid ends before it does."""
        if self.stable is None:
            return "none"
        low, high = self.stable
        rates = [outcome.point.lr for outcome in self.outcomes]
        text = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        ends = [word for word, is_end in (("lowest", low == rates[0]), ("highest", high == rates[-1])) if is_end]
        return f"{text} ({' and '.join(ends)} tried)" if ends else text


def find_all(outcomes: Sequence[Outcome], tolerance: float) -> list[Finding]:
    """Return what each strategy's runs say.

    Args:
        outcomes: Of all runs.
        tolerance: Nats above the strategy's best validation loss up to which a rate counts as stable.
    """
    by_strategy: dict[str, list[Outcome]] = {}
    for outcome in sorted(outcomes, key=lambda outcome: outcome.point.lr):
        by_strategy.setdefault(outcome.point.strategy, []).append(outcome)
    order = list(dict.fromkeys(outcome.point.strategy for outcome in outcomes))
    return [_find(name, by_strategy[name], tolerance) for name in order]


def _find(strategy: str, outcomes: Sequence[Outcome], tolerance: float) -> Finding:
    losses = {outcome.point.lr: outcome.loss for outcome in outcomes}
    found = {outcome.loss: outcome for outcome in reversed(outcomes) if outcome.loss is not None}
    best = found[min(found)] if found else None
    return Finding(strategy, tuple(outcomes), best, stable_range(losses, tolerance))


def write_report(findings: Sequence[Finding], folder: Path, *, tolerance: float, command: str) -> dict[str, Path]:
    """Write sweep.md, sweep.csv and sweep.png; return where they are, by what they are."""
    text = "\n".join(
        [
            "# Learning rates that strategies stand",
            "",
            f"`{command}`",
            "",
            *describe_findings(findings, tolerance),
            "",
            "![Final validation loss against the learning rate](sweep.png)",
            "",
            *_table(_HEAD, [_row(outcome) for finding in findings for outcome in finding.outcomes]),
            "",
        ]
    )
    paths = {"report": folder / "sweep.md", "table": folder / "sweep.csv", "figure": folder / "sweep.png"}
    paths["report"].write_text(text, encoding="utf-8")
    with paths["table"].open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([name.lower().replace(" ", "_") for name in _HEAD])
        writer.writerows(_row(outcome) for finding in findings for outcome in finding.outcomes)
    save_figure(draw_sweep(findings), paths["figure"])
    return paths


def describe_findings(findings: Sequence[Finding], tolerance: float) -> list[str]:
    """Return the table of strategies, the criterion and the advice, as lines of Markdown."""
    rows = [
        [
            finding.strategy,
            "-" if finding.best is None else f"{finding.best.point.lr:g}",
            "-" if finding.best is None else f"{finding.best.loss:.4f}",
            finding.range_in_words,
            str(sum(outcome.status == "diverged" for outcome in finding.outcomes)),
            str(sum(not outcome.is_settled for outcome in finding.outcomes)),
        ]
        for finding in findings
    ]
    head = ["Strategy", "Best rate", "Validation loss", "Stable range", "Diverged", "Failed or unfinished"]
    criterion = (
        f"Stable: the final validation loss is within {tolerance:g} nats of the strategy's best, and so it is for "
        "every rate between it and the best one. A run that diverged is not stable."
    )
    return [*_table(head, rows), "", criterion, *advise(findings)]


def advise(findings: Sequence[Finding]) -> list[str]:
    """Return what follows for ``optim.sr_lr_scale``, and where the grid was too narrow."""
    lines = []
    best = {finding.strategy: finding.best.point.lr for finding in findings if finding.best is not None}
    highest = {finding.strategy: finding.stable[1] for finding in findings if finding.stable is not None}
    if "adamw_sr" in best and REFERENCE in best:
        ratios = [best["adamw_sr"] / best[REFERENCE], highest["adamw_sr"] / highest[REFERENCE]]
        lines.append(
            f"The best rate of adamw_sr is {ratios[0]:.3g} x that of {REFERENCE}, its highest stable rate "
            f"{ratios[1]:.3g} x: with optim.lr={best[REFERENCE]:g} the best is optim.sr_lr_scale={ratios[0]:.3g}."
        )
    for finding in findings:
        rates = [outcome.point.lr for outcome in finding.outcomes]
        if len(rates) > 1 and finding.best is not None and finding.best.point.lr in (rates[0], rates[-1]):
            side = "lower" if finding.best.point.lr == rates[0] else "higher"
            lines.append(f"{finding.strategy} is best at the end of the grid: try {side} rates.")
    return [line for text in lines for line in ("", text)]


def draw_sweep(findings: Sequence[Finding]) -> Any:
    """Return a figure of final validation loss against learning rate: stable ranges are bold, divergence is a cross."""
    figure, axes = new_figure()
    losses = [outcome.loss for finding in findings for outcome in finding.outcomes if outcome.loss is not None]
    top = max(losses, default=1.0) + 0.08 * (max(losses, default=1.0) - min(losses, default=0.0) or 1.0)
    for index, finding in enumerate(findings):
        color = COLORS[index % len(COLORS)]
        points = [(outcome.point.lr, outcome.loss) for outcome in finding.outcomes if outcome.loss is not None]
        axes.plot(
            [lr for lr, _ in points],
            [loss for _, loss in points],
            "o-",
            color=color,
            label=finding.strategy,
            linewidth=1,
        )
        if finding.stable is not None:
            low, high = finding.stable
            stable = [(lr, loss) for lr, loss in points if low <= lr <= high]
            axes.plot(
                [lr for lr, _ in stable],
                [loss for _, loss in stable],
                "o-",  # a single rate has no line
                color=color,
                linewidth=8,
                markersize=14,
                alpha=0.3,
            )
        crosses = [outcome.point.lr for outcome in finding.outcomes if outcome.status == "diverged"]
        axes.plot(crosses, [top] * len(crosses), "x", color=color, markersize=9, markeredgewidth=2)
    axes.set(xlabel="highest learning rate", ylabel="final validation loss (nats per token)", xscale="log")
    axes.set_title("Broad: the stable range. Cross: diverged.", fontsize=10)
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    return figure


_HEAD = ["Strategy", "Learning rate", "Status", "Final val loss", "Best val loss", "Last step", "Tokens/s", "Note"]


def _row(outcome: Outcome) -> list[str]:
    run = outcome.run
    best = run.best_val_loss if run is not None else None
    speed = run.tokens_per_second if run is not None else None
    return [
        outcome.point.strategy,
        f"{outcome.point.lr:g}",
        outcome.status,
        "" if outcome.loss is None else f"{outcome.loss:.4f}",
        "" if best is None else f"{best[0]:.4f}",
        str(run.step) if run is not None else "0",
        "" if speed is None else f"{speed:.0f}",
        "" if outcome.loss is not None else describe(outcome).partition(": ")[2],
    ]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [" | ".join(cells) for cells in [head, ["---"] * len(head), *rows]]
    return [f"| {line} |" for line in lines]
