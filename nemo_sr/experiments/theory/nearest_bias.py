# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Rounding to nearest has a bias that does not go away with the learning rate; it grows."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import torch

from nemo_sr.experiments import Check, Experiment, Figure, Lab, Report, Table
from nemo_sr.experiments.theory.effective_gradient import effective_moments
from nemo_sr.experiments.theory.rounding import round_step, round_with

_MINIMUM, _START = 4, 120  # in ulps above 1


def effective_gradients(*, log2_lrs: list[int]) -> list[list[str | int]]:
    """Return log2 lr and, for w = 1.5, g = 1, the mean effective gradients to nearest and with SR, as fractions."""
    means = [[effective_moments(name, 1.5, 1.0, 2.0**lr)[0] for name in ("nearest", "stochastic")] for lr in log2_lrs]
    return [[lr, *map(str, pair)] for lr, pair in zip(log2_lrs, means, strict=True)]


def resting_place(*, rounding: str, log2_lr: int, steps: int) -> int:
    """Descend (w - m)^2 / 2 in [1, 2) without noise, and return how many ulps above the minimum it ends.

    Args:
        rounding: "nearest"; others are for showing that the check can fail.
        log2_lr: Of the learning rate.
        steps: At most; it ends when w no longer moves.
    """
    ulp = 2.0**-7
    minimum = 1 + _MINIMUM * ulp
    w = torch.tensor([1 + _START * ulp])
    for _ in range(steps):
        new = round_with(rounding, w - 2.0**log2_lr * (w - minimum), torch.zeros(1, dtype=torch.int32))
        if torch.equal(new, w):
            break
        w = new
    return round((w.item() - minimum) / ulp)


def claimed_resting_place(log2_lr: int) -> int:
    """Return the same by arithmetic: the first k, from above, with lr k < 1/2, or = 1/2 where the tie goes back."""
    lr, k = Fraction(2) ** log2_lr, _START - _MINIMUM
    while lr * k > Fraction(1, 2) or (lr * k == Fraction(1, 2) and (_MINIMUM + k) % 2):
        moved = lr * k
        k -= int(moved + Fraction(1, 2))
        if moved % 1 == Fraction(1, 2) and (_MINIMUM + k) % 2:
            k += 1
    return k


def final_losses(*, rounding: str, log2_lrs: list[int], elements: int, time: float, seed: int) -> list[float]:
    """Descend many one-dimensional quadratics for the time lr x steps, and return the mean loss for each learning rate.

    Args:
        rounding: See :func:`nemo_sr.experiments.theory.rounding.round_with`.
        log2_lrs: Of the learning rates.
        elements: Quadratics of curvature 1, starts and minima normal numbers.
        time: lr x steps.
        seed: Of starts, minima and noise.
    """
    generator = torch.Generator().manual_seed(seed)
    start, minimum = (
        torch.randn(elements, generator=generator).bfloat16().float(),
        torch.randn(elements, generator=generator),
    )
    losses = []
    for log2_lr in log2_lrs:
        lr, w = 2.0**log2_lr, start
        for step in range(1, round(time / lr) + 1):
            w = round_step(rounding, w - lr * (w - minimum), seed=seed, step=step)
        losses.append(((w - minimum).double() ** 2).mean().item() / 2)
    return losses


def run(lab: Lab) -> Report:
    """Compute the report."""
    gradients = lab.part(effective_gradients, log2_lrs=list(range(-4, -15, -1)))
    log2_lrs = list(range(-2, lab.choose(quick=-6, full=-11), -1))
    rests = [lab.part(resting_place, rounding="nearest", log2_lr=lr, steps=100000) for lr in log2_lrs]
    claims = [claimed_resting_place(lr) for lr in log2_lrs]
    settings: dict[str, Any] = {
        "log2_lrs": log2_lrs,
        "elements": lab.choose(quick=256, full=4096),
        "time": 12.0,
        "seed": 0,
    }
    losses = {name: lab.part(final_losses, rounding=name, **settings) for name in ("none", "nearest", "stochastic")}

    zero = [row[1] for row in gradients if 2.0 ** row[0] < 2.0**-8]
    exact = [row[2] for row in gradients]
    rises = all(a < b for a, b in zip(losses["nearest"], losses["nearest"][1:], strict=False))
    last = {name: values[-1] for name, values in losses.items()}
    checks = [
        Check(
            "to nearest the effective gradient is 0, not g = 1, for every lr|g| < D/2: learning rates where not",
            0,
            len(zero) - zero.count("0"),
            zero.count("0") == len(zero),
        ),
        Check(
            "SR's mean is g = 1, exactly, for all of them: learning rates where not",
            0,
            len(exact) - exact.count("1"),
            set(exact) == {"1"},
        ),
        Check(
            "to nearest the descent ends where lr k <= 1/2, k ulps from the minimum: learning rates where not",
            0,
            sum(a != b for a, b in zip(claims, rests, strict=True)),
            claims == rests,
        ),
        Check(
            "to nearest the loss after the same lr x steps grows whenever lr is halved",
            "grows",
            "grows" if rises else "does not",
            rises,
        ),
        Check(
            "at the smallest lr SR ends 100 times lower than to nearest",
            "> 100",
            last["nearest"] / last["stochastic"],
            last["nearest"] > 100 * last["stochastic"],
        ),
    ]

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        labels = {"none": "FP32", "nearest": "BF16 to nearest", "stochastic": "BF16 with SR"}
        for name, values in losses.items():
            axes.loglog([2.0**lr for lr in log2_lrs], values, "o-", label=labels[name])
        axes.set(xlabel="learning rate (lr x steps is the same for all)", ylabel="final loss")
        axes.legend()

    rows = [
        [lr, c, r, *(losses[name][i] for name in losses)]
        for i, (lr, c, r) in enumerate(zip(log2_lrs, claims, rests, strict=True))
    ]
    summary = f"""
A step of less than half the distance D to the next BF16 value is lost when it is rounded to nearest: the effective
gradient is 0, so its bias is -g, for every lr below D / (2|g|). The bias does not vanish with the learning rate; the
set of gradients that are lost grows as lr falls. A descent stops where lr|g| <= D/2, the further from the minimum the
smaller lr: on (w - m)²/2, {rests[-1]} ulps away (it started {_START - _MINIMUM} away) at lr = 2^{log2_lrs[-1]},
exactly as arithmetic says.

{settings["elements"]:,} quadratics with normal starts and minima, all for lr x steps = {settings["time"]:g}: at lr =
2^{log2_lrs[-1]} the loss ends at {last["nearest"]:.1e} to nearest, {last["stochastic"]:.1e} with SR and
{last["none"]:.1e} in FP32.
"""
    return Report(
        summary=summary,
        checks=checks,
        tables=[
            Table("gradients", "Mean effective gradient at w = 1.5, g = 1", ["log2 lr", "to nearest", "SR"], gradients),
            Table(
                "rests",
                "Where descents end",
                ["log2 lr", "claimed distance (ulp)", "measured", "final loss FP32", "to nearest", "SR"],
                rows,
            ),
        ],
        figures=[Figure("nearest_bias", "Final loss against the learning rate.", draw, (5, 2.8))],
    )


EXPERIMENT = Experiment(
    name="nearest_bias", title="Rounding to nearest is biased at every learning rate", page="theory", run=run
)
