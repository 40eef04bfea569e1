# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Mean and variance of the gradient that a rounded step amounts to, in rational numbers over all noise values."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import torch

from nemo_sr.experiments import Check, Experiment, Figure, Lab, Report, Table
from nemo_sr.experiments.theory.rounding import outcomes

_WEIGHTS = (1.0, 1.5, 1.9921875, -1.0, -1.25, 2.0**-20, -(2.0**20))
"""BF16 values; below 1 and -1 in magnitude the next value is half as far as above."""


def exact_steps(*, rounding: str, shares: list[int], log2_lrs: list[int]) -> list[list[Any]]:
    """Take steps without any FP32 error, and compare the moments of the effective gradient with the claimed ones.

    Args:
        rounding: See :func:`nemo_sr.experiments.theory.rounding.round_with`.
        shares: lr |g| in 65,536ths of the distance D to the next BF16 value; below 65,536.
        log2_lrs: Of the learning rates.

    Returns:
        For each lr: log2 lr, steps looked at, those whose mean is not g, and whose variance is not |g|(D/lr - |g|).
    """
    rows = []
    for log2_lr in log2_lrs:
        lr, num, wrong_mean, wrong_variance = Fraction(2) ** log2_lr, 0, 0, 0
        for weight in _WEIGHTS:
            for direction in (-1, 1):
                gap = _gap(weight, direction)
                for share in shares:
                    grad = -direction * gap * Fraction(share, 65536) / lr
                    mean, variance = effective_moments(rounding, weight, float(grad), 2.0**log2_lr)
                    num += 1
                    wrong_mean += mean != grad
                    wrong_variance += variance != abs(grad) * (gap / lr - abs(grad))
        rows.append([log2_lr, num, wrong_mean, wrong_variance])
    return rows


def effective_moments(rounding: str, weight: float, grad: float, lr: float) -> tuple[Fraction, Fraction]:
    """Return mean and variance of (w - SR(w - lr g)) / lr over all noise values, w - lr g being computed in FP32.

    Args:
        rounding: See :func:`nemo_sr.experiments.theory.rounding.round_with`.
        weight: A BF16 value, w.
        grad: An FP32 value, g.
        lr: An FP32 value.
    """
    w = torch.tensor([weight], dtype=torch.float32)
    x = w - torch.tensor([grad], dtype=torch.float32) * torch.tensor([lr], dtype=torch.float32)
    draws = [
        ((Fraction(weight) - Fraction(value)) / Fraction(lr), Fraction(count, 65536))
        for value, count in outcomes(rounding, x)
    ]
    mean = sum((value * share for value, share in draws), Fraction(0))
    return mean, sum((value * value * share for value, share in draws), Fraction(0)) - mean * mean


def _gap(weight: float, direction: int) -> Fraction:
    bits = int(torch.tensor([weight], dtype=torch.bfloat16).view(torch.int16).item())
    beside = torch.tensor([bits + (1 if direction * weight > 0 else -1)], dtype=torch.int16).view(torch.bfloat16)
    return abs(Fraction(float(beside.double().item())) - Fraction(weight))


def float32_steps(*, rounding: str, log2_updates: list[int], draws: int, seed: int) -> list[list[float]]:
    """Measure how far the mean of the effective gradient is from g when FP32 has to round w - lr g.

    Args:
        rounding: See :func:`nemo_sr.experiments.theory.rounding.round_with`.
        log2_updates: Of lr |g| / |w|.
        draws: Weights and gradients tried for each.
        seed: Of these.

    Returns:
        For each: log2 of the update, largest and root mean square of |mean - g| / |g|, and the largest over what FP32
        allows: 2^-24 of 1 to 2 for w - lr g, and 2^-24 of lr g itself.
    """
    generator = torch.Generator().manual_seed(seed)
    lr = torch.tensor(1e-3, dtype=torch.float32).item()
    rows = []
    for log2_update in log2_updates:
        weights = (1 + torch.rand(draws, generator=generator)).bfloat16().double().tolist()
        spread = (0.5 + torch.rand(draws, generator=generator)).tolist()
        errors, shares = [], []
        for weight, factor in zip(weights, spread, strict=True):
            grad = torch.tensor(weight * factor * 2.0**log2_update / lr, dtype=torch.float32).item()
            mean, _ = effective_moments(rounding, weight, grad, lr)
            errors.append(abs(float(mean / Fraction(grad) - 1)))
            shares.append(errors[-1] * lr * grad * 2.0**24 / (1 + lr * grad))
        rows.append([log2_update, max(errors), (sum(error * error for error in errors) / draws) ** 0.5, max(shares)])
    return rows


def run(lab: Lab) -> Report:
    """Compute the report."""
    settings: dict[str, Any] = {
        "shares": lab.choose(quick=[1, 0x4321, 65535], full=[1, 2, 255, 0x1234, 0x4321, 0x8000, 0xABCD, 65534, 65535]),
        "log2_lrs": lab.choose(quick=[-10, 0], full=[-24, -17, -10, -5, 0]),
    }
    own, nearest = (lab.part(exact_steps, rounding=name, **settings) for name in ("stochastic", "nearest"))
    inexact = lab.part(
        float32_steps,
        rounding="stochastic",
        log2_updates=list(range(-8, -27, -2)),
        draws=lab.choose(quick=10, full=200),
        seed=0,
    )
    worst = max(row[3] for row in inexact)
    num = sum(row[1] for row in own)
    wrong_mean, wrong_variance, control = (
        sum(row[i] for row in data) for data, i in ((own, 2), (own, 3), (nearest, 2))
    )
    lost = inexact[-1]
    checks = [
        Check("the effective gradient has mean g, exactly: steps where not", 0, wrong_mean, wrong_mean == 0),
        Check(
            "its variance is |g|(D/lr - |g|), exactly, for lr|g| < D: steps where not",
            0,
            wrong_variance,
            wrong_variance == 0,
        ),
        Check("control: with rounding to nearest the mean check fails", "> 0 steps", control, control > 0),
        Check(
            "where FP32 rounds w - lr g, the mean step is off by 2^-24 at most (|w| in [1, 2)): largest, in these",
            "<= 1",
            worst,
            worst <= 1,
        ),
        Check(
            f"the mean is g within 1 % even at lr|g| = 2^{lost[0]} |w|",
            "<= 0.01",
            lost[1],
            lost[1] <= 0.01,
            required=False,
        ),
    ]

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        axes.semilogy([row[0] for row in inexact], [max(row[1], 1e-9) for row in inexact], "o-", label="largest")
        axes.semilogy([row[0] for row in inexact], [max(row[2], 1e-9) for row in inexact], "o-", label="rms")
        axes.set(xlabel="log2 of lr|g| / |w|", ylabel="|mean of the effective gradient / g - 1|")
        axes.legend()

    summary = f"""
A rounded step from w acts as if the gradient were (w - SR(w - lr g)) / lr. Let D be the distance from w to the next
BF16 value in the step's direction (at a power of two it is half as far towards zero). For lr|g| < D the step is
either none or one of D, so the effective gradient is 0 or D/lr, with mean g and variance |g|(D/lr - |g|): it
**falls** as lr rises. Checked in rational numbers over all 65,536 noise values, in {num:,} steps that FP32 computes
without error.

Real steps are computed in FP32, and SR keeps the mean of what FP32 computed. What w - lr g loses there is lost on
average too: with lr|g| = 2^{inexact[4][0]} |w| the mean is off by up to {inexact[4][1]:.1e} of g, at 2^{lost[0]} |w|
by up to {lost[1]:.0%}. That is FP32's own limit, and the same that an FP32 master weight has.
"""
    return Report(
        summary=summary,
        checks=checks,
        tables=[
            Table(
                "exact", "Steps that miss, by learning rate", ["log2 lr", "steps", "wrong mean", "wrong variance"], own
            ),
            Table(
                "float32",
                "Error of the mean where FP32 rounds",
                ["log2 lr|g|/|w|", "largest", "rms", "of FP32's bound"],
                inexact,
            ),
        ],
        figures=[
            Figure("effective_gradient", "FP32's own rounding bounds how small an update can be.", draw, (5, 2.8))
        ],
    )


EXPERIMENT = Experiment(
    name="effective_gradient", title="The gradient that a rounded step amounts to", page="theory", run=run
)
