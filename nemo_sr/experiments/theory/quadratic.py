# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""On a quadratic the mean iterate is gradient descent's, and the expected loss after a step has one more term."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import Any

import torch
from torch import Tensor

from nemo_sr.experiments import Check, Experiment, Figure, Lab, Report, Table
from nemo_sr.experiments.theory.rounding import outcomes, round_step, ulp

_HESSIAN = [[Fraction(n, 8) for n in row] for row in ((9, 2, -1), (2, 6, 3), (-1, 3, 11))]
_MINIMUM = [Fraction(n, 16) for n in (19, 21, 30)]
_LR = Fraction(1, 1 << 10)


def hessian(size: int) -> Tensor:
    """Return a positive definite matrix that is not diagonal, with eigenvalues from 0.5 to about 2.5. Float64."""
    places = torch.arange(size, dtype=torch.float64)
    return 0.5 * torch.eye(size, dtype=torch.float64) + torch.exp(-(places[:, None] - places[None]).abs())


def mean_iterate(*, rounding: str, runs: int, size: int, lr: float, steps: int, seed: int) -> dict[str, Any]:
    """Descend a quadratic in many runs side by side, and compare their mean with gradient descent in FP64.

    Args:
        rounding: See :func:`nemo_sr.experiments.theory.rounding.round_with`.
        runs: Side by side, from one point.
        size: Parameters.
        lr: Learning rate.
        steps: To take.
        seed: Of the noise.

    Returns:
        At 20 times: step, gradient descent, mean and standard error of the first parameter; and for each of these times
        and parameters the distance between the two in standard errors.
    """
    matrix, minimum = hessian(size), torch.linspace(0.3, 1.9, size, dtype=torch.float64)
    exact = torch.linspace(2.5, 0.7, size).bfloat16().double()
    weights = exact.float().expand(runs, size).contiguous()
    rows, distances = [], []
    for step in range(1, steps + 1):
        exact = exact - lr * (matrix @ (exact - minimum))
        x = weights.double() - lr * ((weights.double() - minimum) @ matrix)
        weights = round_step(rounding, x.float(), seed=seed, step=step)
        if step % (steps // 20) == 0:
            mean = weights.double().mean(0)
            error = (weights.double().std(0) / runs**0.5).clamp(min=1e-9)
            rows.append([step, exact[0].item(), mean[0].item(), error[0].item()])
            distances.append(((mean - exact) / error).tolist())
    return {"rows": rows, "distances": distances}


def _loss(weights: list[Fraction]) -> Fraction:
    away = [w - m for w, m in zip(weights, _MINIMUM, strict=True)]
    return (
        sum(
            (a * h * b for a, row in zip(away, _HESSIAN, strict=True) for h, b in zip(row, away, strict=True)),
            Fraction(0),
        )
        / 2
    )


def _step(weights: list[Fraction]) -> tuple[list[Fraction], list[Fraction]]:
    away = [w - m for w, m in zip(weights, _MINIMUM, strict=True)]
    grads = [sum((h * a for h, a in zip(row, away, strict=True)), Fraction(0)) for row in _HESSIAN]
    return grads, [w - _LR * g for w, g in zip(weights, grads, strict=True)]


def _start(draw: int) -> list[Fraction]:
    return [Fraction(128 + (draw * k + 11 * k) % 128, 128) for k in (37, 53, 71)]


def _exact_float32(values: list[Fraction]) -> Tensor:
    x = torch.tensor([float(value) for value in values], dtype=torch.float32)
    assert [Fraction(value) for value in x.double().tolist()] == values, "FP32 must hold these steps"
    return x


def expected_losses(*, rounding: str, draws: int) -> list[bool]:
    """Compare the expected loss after a step with L(w - lr g) + 1/2 sum H_ii lr|g_i|(D_i - lr|g_i|), as fractions.

    Each parameter's outcomes and their shares come from rounding with all 65,536 noise values; the parameters' noise is
    taken to be independent.

    Args:
        rounding: See :func:`nemo_sr.experiments.theory.rounding.round_with`.
        draws: Starting points, BF16 values in [1, 2).

    Returns:
        Whether the two are equal, for each starting point.
    """
    equal = []
    for draw in range(draws):
        grads, target = _step(_start(draw))
        marginals = [
            [(Fraction(value), Fraction(count, 65536)) for value, count in outcomes(rounding, x)]
            for x in _exact_float32(target).unbind()
        ]
        mean = Fraction(0)
        for joint in product(*marginals):
            share = Fraction(1)
            for _, one in joint:
                share *= one
            mean += share * _loss([value for value, _ in joint])
        gaps = [_LR * abs(g) * (Fraction(1, 128) - _LR * abs(g)) for g in grads]
        equal.append(mean == _loss(target) + sum((_HESSIAN[i][i] * gap for i, gap in enumerate(gaps)), Fraction(0)) / 2)
    return equal


def sampled_losses(*, rounding: str, runs: int, draws: int, seed: int) -> list[list[float]]:
    """Take one step in many runs with the real noise, which must be independent for the formula to hold.

    Args:
        rounding: See :func:`nemo_sr.experiments.theory.rounding.round_with`.
        runs: Side by side.
        draws: Starting points.
        seed: Of the noise.

    Returns:
        For each starting point: 1/2 sum H_ii lr|g_i|(D_i - lr|g_i|), the measured mean of what the loss is above
        L(w - lr g), and its standard error.
    """
    matrix = torch.tensor([[float(h) for h in row] for row in _HESSIAN], dtype=torch.float64)
    minimum = torch.tensor([float(m) for m in _MINIMUM], dtype=torch.float64)
    rows = []
    for draw in range(draws):
        grads, target = _step(_start(draw))
        x = _exact_float32(target)
        away = round_step(rounding, x.expand(runs, 3).contiguous(), seed=seed, step=draw + 1).double() - minimum
        above = 0.5 * ((away @ matrix) * away).sum(1) - float(_loss(target))
        step = float(_LR) * torch.tensor([abs(float(g)) for g in grads], dtype=torch.float64)
        term = 0.5 * (matrix.diag() * step * (ulp(torch.ones(3)) - step)).sum().item()
        rows.append([term, above.mean().item(), max(above.std().item(), 1e-12) / runs**0.5])
    return rows


def run(lab: Lab) -> Report:
    """Compute the report."""
    settings: dict[str, Any] = {"size": 8, "lr": 0.03125, "steps": 200, "seed": 0}
    own = lab.part(mean_iterate, rounding="stochastic", runs=lab.choose(quick=512, full=16384), **settings)
    nearest = lab.part(mean_iterate, rounding="nearest", runs=2, **settings)
    equal = lab.part(expected_losses, rounding="stochastic", draws=lab.choose(quick=20, full=500))
    unequal = lab.part(expected_losses, rounding="nearest", draws=20)
    sampled = lab.part(
        sampled_losses,
        rounding="stochastic",
        runs=lab.choose(quick=20000, full=1000000),
        draws=lab.choose(quick=4, full=20),
        seed=1,
    )

    def furthest(data: dict[str, Any]) -> float:
        return float(max(abs(distance) for row in data["distances"] for distance in row))

    num = len(own["distances"]) * settings["size"]
    worst_loss = max(abs(row[1] - row[0]) / row[2] for row in sampled)
    last, stuck = own["rows"][-1], nearest["rows"][-1]
    checks = [
        Check(
            f"the mean iterate is gradient descent's: largest of {num} distances, in standard errors",
            "<= 4",
            furthest(own),
            furthest(own) <= 4,
            1.0,
        ),
        Check("control: to nearest it is not", "> 4", furthest(nearest), furthest(nearest) > 4),
        Check(
            "E[loss] = L(w - lr g) + 1/2 sum H_ii lr|g_i|(D_i - lr|g_i|), exactly: steps where not",
            0,
            equal.count(False),
            all(equal),
        ),
        Check("control: to nearest it is not", "> 0 steps", unequal.count(False), not all(unequal)),
        Check(
            f"with the real noise too: largest of {len(sampled)} distances, in standard errors",
            "<= 4",
            worst_loss,
            worst_loss <= 4,
            1.0,
        ),
    ]

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        steps = [row[0] for row in own["rows"]]
        axes.plot(steps, [row[2] - row[1] for row in nearest["rows"]], "s-", color="C3", ms=3, label="to nearest")
        above, errors = [row[2] - row[1] for row in own["rows"]], [4 * row[3] for row in own["rows"]]
        axes.errorbar(steps, above, errors, fmt="o", ms=3, label="mean of SR runs, 4 standard errors")
        axes.axhline(0, color="k", lw=0.8)
        axes.set(xlabel="step", ylabel="first parameter, less gradient descent's")
        axes.set_yscale("symlog", linthresh=1e-3)
        axes.legend()

    summary = f"""
Where the gradient is linear in the weights, the mean of the gradient is the gradient at the mean. So on a quadratic
the mean of the iterates is exactly that of gradient descent, whatever the noise, at any learning rate. After
{last[0]} steps the first of {settings["size"]} coupled parameters is at {last[2]:.5f} ± {last[3]:.5f} on average
(gradient descent: {last[1]:.5f}); rounded to nearest it stands at {stuck[2]:.5f}.

The loss is higher than gradient descent's by the variance times half the curvature: after one step by 1/2 sum H_ii
lr|g_i|(D_i - lr|g_i|) for lr|g_i| <= D_i. In rational numbers over all noise values of each parameter the equality is
exact ({len(equal)} steps), given that the parameters' noise is independent; with the real noise of many runs it holds
within {worst_loss:.1f} standard errors.
"""
    return Report(
        summary=summary,
        checks=checks,
        tables=[
            Table(
                "iterates",
                "The first parameter",
                ["step", "gradient descent", "mean of runs", "standard error"],
                own["rows"],
            ),
            Table(
                "losses", "Loss after a step, above L(w - lr g)", ["claimed", "mean of runs", "standard error"], sampled
            ),
        ],
        figures=[Figure("quadratic", "Mean iterate on a quadratic, less gradient descent in FP64.", draw, (5, 2.8))],
    )


EXPERIMENT = Experiment(name="quadratic", title="Mean iterate and expected loss on a quadratic", page="theory", run=run)
