# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Small learning rates: the mean and the variance follow differential equations, exactly computed on one parameter.

On one parameter in [1, 2) SR is a Markov chain on 128 values. Its transition matrix comes from rounding with all 65,536
noise values, so mean and variance after any number of steps are known without drawing a single random number.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import copysign
from typing import Any

import torch
from torch import Tensor

from nemo_sr.experiments import Check, Experiment, Figure, Lab, Report, Table
from nemo_sr.experiments.theory.rounding import outcomes

_D = 2.0**-7
_TIMES = (0.5, 1.0, 2.0)


@dataclass(frozen=True)
class Cubic:
    """L(w) = u²/2 + third u³/(6 width), u = w - minimum; started at u = 0.75 width.

    Args:
        third: Third derivative, times the width.
        width: Scale of the problem; the smaller, the fewer BF16 values there are in it.
        minimum: Where it lies.
    """

    third: float
    width: float
    minimum: float = 1.125

    @property
    def start(self) -> float:
        """Of u."""
        return 0.75 * self.width

    def grad(self, u: Any) -> Any:
        """First derivative."""
        return u + self.third / self.width * u * u / 2

    def hessian(self, u: float) -> float:
        """Second derivative."""
        return 1 + self.third / self.width * u


def chain_moments(*, rounding: str, third: float, width: float, log2_lr: int) -> list[list[float]]:
    """Compute mean and variance of u exactly after the times lr x steps = 0.5, 1 and 2.

    Args:
        rounding: See :func:`nemo_sr.experiments.theory.rounding.round_with`.
        third: See :class:`Cubic`.
        width: See :class:`Cubic`.
        log2_lr: Of the learning rate.
    """
    problem, lr = Cubic(third, width), 2.0**log2_lr
    values = 1 + _D * torch.arange(128, dtype=torch.float64)
    matrix = _transitions(rounding, values, lr * problem.grad(values - problem.minimum))
    share = torch.zeros(128, dtype=torch.float64)
    share[round((problem.minimum + problem.start - 1) / _D)] = 1
    rows, done = [], 0
    for time in _TIMES:
        while done < round(time / lr):
            share, done = share @ matrix, done + 1
        mean = (share * (values - problem.minimum)).sum()
        rows.append([mean.item(), (share * (values - problem.minimum - mean) ** 2).sum().item()])
    return rows


def _transitions(rounding: str, values: Tensor, updates: Tensor) -> Tensor:
    matrix = torch.zeros(len(values), len(values), dtype=torch.float64)
    for row, x in enumerate((values - updates).float().unbind()):
        for value, count in outcomes(rounding, x):
            # Only far from where the chain can be do values leave the interval.
            matrix[row, min(max(round((value - 1) / _D), 0), len(values) - 1)] += count / 65536
    return matrix


def solve(problem: Cubic, *, theory: str) -> list[tuple[float, float]]:
    """Integrate the equations for mean and V (Runge-Kutta of order 4).

    Args:
        problem: Which.
        theory: Of the mean: "flow" is -grad L, "moments" -grad L - 1/2 third V, "penalty" -grad (L + 1/4 D|g|). V
            always follows dV/d tau = -2 H V + D|g|.

    Returns:
        Mean and V at the times.
    """

    def drift(mean: float, variance: float) -> float:
        grad: float = problem.grad(mean)
        if theory == "moments":
            return grad + problem.third / problem.width * variance / 2
        return grad if theory == "flow" else grad + _D / 4 * copysign(1, grad) * problem.hessian(mean)

    def slope(mean: float, variance: float) -> tuple[float, float]:
        return -drift(mean, variance), -2 * problem.hessian(mean) * variance + _D * abs(problem.grad(mean))

    h, mean, variance, found = 1 / 1024, problem.start, 0.0, []
    for step in range(1, round(_TIMES[-1] / h) + 1):
        a = slope(mean, variance)
        b = slope(mean + h / 2 * a[0], variance + h / 2 * a[1])
        c = slope(mean + h / 2 * b[0], variance + h / 2 * b[1])
        d = slope(mean + h * c[0], variance + h * c[1])
        mean += h / 6 * (a[0] + 2 * b[0] + 2 * c[0] + d[0])
        variance += h / 6 * (a[1] + 2 * b[1] + 2 * c[1] + d[1])
        if step * h in _TIMES:
            found.append((mean, variance))
    return found


def run(lab: Lab) -> Report:
    """Compute the report."""
    lrs = [-6, -7, -8, -9]
    rows: list[list[Any]] = []
    found: dict[str, list[float]] = {"mean": [], "variance": [], "penalty": []}
    curves: list[Any] = []
    for third, width in lab.choose(quick=[(2.0, 1.0)], full=[(2.0, 1.0), (2.0, 0.5), (-0.75, 1.0)]):
        problem = Cubic(third, width)
        flow, full, penalty = (solve(problem, theory=name) for name in ("flow", "moments", "penalty"))
        moments = [lab.part(chain_moments, rounding="stochastic", third=third, width=width, log2_lr=lr) for lr in lrs]
        for i, time in enumerate(_TIMES):
            # The error is of first order in lr: what is left of it cancels.
            mean, variance = (2 * moments[-1][i][j] - moments[-2][i][j] for j in (0, 1))
            shift, claimed = mean - flow[i][0], full[i][0] - flow[i][0]
            rows.append(
                [third, width, time, flow[i][0], claimed, shift, penalty[i][0] - flow[i][0], full[i][1], variance]
            )
            found["mean"].append(abs(shift / claimed - 1))
            found["variance"].append(abs(variance / full[i][1] - 1))
            found["penalty"].append(abs(shift / (penalty[i][0] - flow[i][0]) - 1))
        if not curves:
            curves = [[abs(m[1][0] - full[1][0]) for m in moments], [abs(m[1][1] - full[1][1]) for m in moments]]
    nearest = lab.part(chain_moments, rounding="nearest", third=2.0, width=1.0, log2_lr=-9)
    control = abs((nearest[1][0] - rows[1][3]) / rows[1][4] - 1)
    worst = {name: max(values) for name, values in found.items()}
    checks = [
        Check(
            "d mean/d tau = -grad L - 1/2 L''' V: the mean's shift from gradient flow, largest relative difference",
            "<= 0.05",
            worst["mean"],
            worst["mean"] <= 0.05,
        ),
        Check(
            "dV/d tau = -(HV + VH) + D|g|: largest relative difference of V",
            "<= 0.05",
            worst["variance"],
            worst["variance"] <= 0.05,
        ),
        Check("control: to nearest the mean's shift is another", "> 0.05", control, control > 0.05),
        Check(
            "the mean follows gradient flow on L + 1/4 D|g| instead: smallest relative difference of the shift",
            "<= 0.05",
            min(found["penalty"]),
            min(found["penalty"]) <= 0.05,
            required=False,
        ),
    ]

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        steps = [2.0**lr for lr in lrs]
        axes.loglog(steps, curves[0], "o-", label="mean")
        axes.loglog(steps, curves[1], "o-", label="variance")
        axes.loglog(steps, [curves[0][0] * step / steps[0] for step in steps], "k:", label="proportional to lr")
        axes.set(xlabel="learning rate", ylabel="distance from the equations' solution")
        axes.legend()

    first = rows[1]
    summary = f"""
As lr goes to 0 along the time tau = lr x steps, the mean of the iterates follows d mean/d tau = -grad L - 1/2 (third
derivative : V), and their covariance dV/d tau = -(HV + VH) + diag(D|g|). **The noise does not vanish with lr**: D|g|
has no lr in it. What moves the mean off gradient flow is the third derivative alone; on a quadratic nothing does.

Checked on cubics of one parameter in [1, 2), where SR is a Markov chain whose matrix is known exactly: no statistics.
At tau = 1 the mean is {first[5]:+.2e} off gradient flow in the limit of small lr (two learning rates, 2^-8 and 2^-9,
extrapolated), the equations say {first[4]:+.2e}. Both are for small D: they leave out third moments, and are off by
up to {max(worst["mean"], worst["variance"]):.1%} here. Where the sign of the third derivative changes, so does the
shift.

Gradient flow on the loss with the penalty 1/4 D|g| would be {first[6]:+.2e} off: the mean does not go there.
"""
    columns = [
        "third derivative x width",
        "width",
        "tau",
        "gradient flow",
        "shift claimed",
        "shift measured",
        "shift with penalty",
        "V claimed",
        "V measured",
    ]
    return Report(
        summary=summary,
        checks=checks,
        tables=[Table("moments", "Mean's shift from gradient flow, and variance, as lr goes to 0", columns, rows)],
        figures=[Figure("small_steps", "Distance from the limit, at tau = 1.", draw, (5, 2.8))],
    )


EXPERIMENT = Experiment(
    name="small_steps", title="Small learning rates: the equations for mean and variance", page="theory", run=run
)
