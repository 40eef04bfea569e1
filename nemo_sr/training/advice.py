# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What follows from a run's telemetry, in plain words. The criteria are constants; docs/telemetry.md states them."""

from __future__ import annotations

from dataclasses import dataclass

from nemo_sr.training.rounding_sums import RoundingSums

MATTERS = 0.1
"""Share of lost updates from which the way of rounding matters."""

UNBIASED = 5.0
"""Standard errors within which a bias is noise; beyond it by chance once in 1.7 million."""

NOISY = 0.5
"""Ratio of rounding noise to update from which a higher learning rate gains; there noise makes a step 12 % longer."""

SHORT = 0.01
"""Share by which a second moment may be short before that is worth a word."""


@dataclass(frozen=True)
class Observed:
    """What a start of a run has shown.

    Args:
        sums: Of all reports.
        shortfall: Of the last report: how far a second moment rounded to nearest is below the exact one.
        num_reports: How many there were.
        is_stochastic: Whether weights are rounded stochastically; to nearest otherwise.
        exp_avg_sq_rounding: "stochastic" or "nearest".
        num_troubles: Spikes of the loss and skipped steps, since the run began.
    """

    sums: RoundingSums
    shortfall: float
    is_stochastic: bool
    exp_avg_sq_rounding: str
    num_troubles: int


def give_advice(observed: Observed) -> list[str]:
    """Return what to make of it, a sentence or two a line."""
    metrics = observed.sums.metrics()
    return [
        _on_lost_updates(observed, metrics["sr/share_lost"], metrics["sr/share_moved"]),
        _on_bias(observed, metrics["sr/bias_along_update"], metrics["sr/bias_from_zero"]),
        *([_on_learning_rate(observed, metrics["sr/noise_to_update"])] if observed.is_stochastic else []),
        *_on_second_moment(observed),
    ]


def _on_lost_updates(observed: Observed, lost: float, moved: float) -> str:
    if not observed.is_stochastic:
        does = f"{lost:.1%} of updates are below half an ulp and lost"
        if lost >= MATTERS:
            return f"{does}: optim.name=adamw_sr would keep them."
        return f"{does}, less than {MATTERS:.0%}: stochastic rounding would change little."
    does = f"{lost:.1%} of updates are below half an ulp ({moved:.1%} of weights move in a step)"
    if lost >= MATTERS:
        return f"{does}: stochastic rounding matters here, rounding to nearest would lose them."
    return f"{does}, less than {MATTERS:.0%}: rounding to nearest would lose little."


def _on_bias(observed: Observed, along: float, away: float) -> str:
    worst = max(abs(along), abs(away))
    figures = f"{along:+.1f} standard errors along the update, {away:+.1f} away from zero"
    if worst <= UNBIASED:
        return f"The rounding is unbiased within noise: {figures}."
    if observed.is_stochastic:
        return (
            f"The rounding is biased: {figures}, where {UNBIASED:g} are allowed. Stochastic rounding must not be: "
            "check nemo_sr's backend with its tests, and report it."
        )
    return f"The rounding is biased, as rounding to nearest is: {figures}."


def _on_learning_rate(observed: Observed, noise: float) -> str:
    does = f"The rounding noise of a step is {noise:.2g} times its update"
    if observed.num_troubles:
        return (
            f"{does}. There were {observed.num_troubles} loss spikes or skipped steps: do not raise the learning rate "
            "before they are explained."
        )
    if noise >= NOISY:
        return (
            f"{does}, and the loss had no spike: the learning rate may be raised, up to 4 times that of a "
            "mixed-precision run. Twice it at a time, and judge by the validation loss (optim.sr_lr_scale)."
        )
    return f"{does}: less than {NOISY:g}, so rounding asks for no higher learning rate."


def _on_second_moment(observed: Observed) -> list[str]:
    does = f"A second moment rounded to nearest is {abs(observed.shortfall):.1%} "
    does += "below the exact one" if observed.shortfall >= 0 else "above the exact one"
    if abs(observed.shortfall) < SHORT:
        return [f"{does}: either way of rounding it will do."]
    if observed.exp_avg_sq_rounding == "stochastic":
        return [f"{does}: keep optim.exp_avg_sq_rounding=stochastic."]
    if observed.is_stochastic:
        return [f"{does}: set optim.exp_avg_sq_rounding=stochastic."]
    return [f"{does}, as this run's are."]
