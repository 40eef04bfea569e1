# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Spikes of the loss: steps that stand out of the steps before them."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping
from typing import Any

WINDOW = 32
"""Steps that a loss is compared with."""

FEWEST = 16
"""Steps before which nothing is a spike."""

DEVIATIONS = 6.0
"""Standard deviations above the median; from the median absolute deviation, which spikes do not move."""

LEAST = 0.05
"""Share of the median by which a spike is above it at least."""


class LossSpikes:
    """Counts spikes.

    A loss is a spike where it is not finite, or above the median of the :data:`WINDOW` losses before it by more than
    :data:`DEVIATIONS` standard deviations and by more than :data:`LEAST` of the median. The standard deviation is
    1.4826 times the median absolute deviation. A spike of several steps counts once. What a loss is compared with is
    kept in checkpoints, so that a resumed run finds the same spikes.
    """

    def __init__(self) -> None:
        self.total = 0
        self._in_spike = False
        self._losses: deque[float] = deque(maxlen=WINDOW)

    def count(self, step: int, loss: float) -> str | None:
        """Count a step's loss.

        Args:
            step: Its number, 1 for the first.
            loss: Its loss.

        Returns:
            What the user should know at the first step of a spike, or None.
        """
        num_before = len(self._losses)
        median = statistics.median(self._losses) if num_before else math.nan
        is_spike = not math.isfinite(loss) or (num_before >= FEWEST and loss > self._limit(median))
        begins = is_spike and not self._in_spike
        self._in_spike = is_spike
        if math.isfinite(loss):
            self._losses.append(loss)
        if not begins:
            return None
        self.total += 1
        return (
            f"step {step}: LOSS SPIKE, {loss:.4f} after a median of {median:.4f} over the {num_before} steps "
            f"before (the {self.total}. of this run)"
        )

    def _limit(self, median: float) -> float:
        deviation = 1.4826 * statistics.median(abs(loss - median) for loss in self._losses)
        return median + max(DEVIATIONS * deviation, LEAST * abs(median))

    def state_dict(self) -> dict[str, Any]:
        """Return what is known, for a checkpoint."""
        return {"total": self.total, "in_spike": self._in_spike, "losses": list(self._losses)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with what a checkpoint knows."""
        self.total, self._in_spike = state["total"], state["in_spike"]
        self._losses = deque(state["losses"], maxlen=WINDOW)
