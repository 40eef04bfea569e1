# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Means with confidence intervals from few seeds, drawn too, and the stable range of the learning rate."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CONFIDENCE = 0.95
TOLERANCE = 0.1
"""Nats above a strategy's best loss up to which a learning rate counts as stable."""


@dataclass(frozen=True)
class Interval:
    """A mean, and how far it may be off.

    Args:
        mean: Of the values.
        half_width: Of the confidence interval; None for a single value, which has none.
        n: Number of values.
    """

    mean: float
    half_width: float | None
    n: int

    @property
    def is_above_zero(self) -> bool:
        """Whether all of the interval is above 0; a single value shows nothing."""
        return self.half_width is not None and self.mean > self.half_width

    def __str__(self) -> str:
        if self.half_width is None:
            return f"{self.mean:.4f} (n={self.n})"
        return f"{self.mean:.4f} ± {self.half_width:.4f} (n={self.n})"


def interval(values: Sequence[float]) -> Interval:
    """Return the mean with its two-sided interval by Student's t distribution, at :data:`CONFIDENCE`.

    Raises:
        ValueError: there are no values.
    """
    n = len(values)
    if n == 0:
        raise ValueError("an interval needs at least one value; got none.")
    mean = statistics.fmean(values)
    if n == 1:
        return Interval(mean, None, 1)
    error = statistics.stdev(values) / math.sqrt(n)
    return Interval(mean, t_quantile((1 + CONFIDENCE) / 2, n - 1) * error, n)


def draw_intervals(axes: Any, places: Sequence[float], intervals: Sequence[Interval], **style: Any) -> None:
    """Draw means with bars for their intervals; a single value has none.

    Args:
        axes: Matplotlib's.
        places: Along x, one for each interval.
        intervals: What to draw.
        **style: Passed to ``axes.errorbar``.
    """
    widths = [one.half_width or 0.0 for one in intervals]
    axes.errorbar(places, [one.mean for one in intervals], widths, capsize=2, **style)


def t_quantile(probability: float, degrees: int) -> float:
    """Return a quantile of Student's t distribution.

    With t = sqrt(degrees) tan(a) the density becomes one of cos(a)^(degrees - 1), which is integrated by Simpson's
    rule; the quantile is found by bisection.

    Args:
        probability: Between 0.5 and 1.
        degrees: Degrees of freedom, 1 or more.
    """

    def area(angle: float) -> float:
        step = angle / 200
        values = [math.cos(step * i) ** (degrees - 1) for i in range(201)]
        return (values[0] + values[-1] + 4 * sum(values[1:-1:2]) + 2 * sum(values[2:-1:2])) * step / 3

    whole = 2 * area(math.pi / 2)
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if 0.5 + area(middle) / whole < probability else (low, middle)
    return math.sqrt(degrees) * math.tan((low + high) / 2)


def stable_range(losses: Mapping[float, float | None], tolerance: float = TOLERANCE) -> tuple[float, float] | None:
    """Return the lowest and the highest learning rate of the unbroken range around the best one.

    Args:
        losses: Final loss by learning rate; None for a run that diverged.
        tolerance: A rate is in the range if its loss is at most this much above the best.

    Returns:
        None if no run has a loss.
    """
    rates = sorted(losses)
    found = {rate: loss for rate, loss in losses.items() if loss is not None and math.isfinite(loss)}
    if not found:
        return None
    best = min(found, key=lambda rate: found[rate])
    low = high = rates.index(best)

    def is_stable(index: int) -> bool:
        return 0 <= index < len(rates) and rates[index] in found and found[rates[index]] <= found[best] + tolerance

    while is_stable(low - 1):
        low -= 1
    while is_stable(high + 1):
        high += 1
    return rates[low], rates[high]
