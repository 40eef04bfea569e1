# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What a comparison wants to know of a run beside its curves."""

from __future__ import annotations

import statistics
import time
from typing import Any

from lightning.pytorch.callbacks import Callback

from nemo_sr.experiments.strategies.held import bytes_held


class MeasuringCallback(Callback):  # type: ignore[misc]
    """Measures bytes of state after the first step, and the time of steps."""

    def __init__(self) -> None:
        self.step = 0
        self.bytes: dict[str, int] = {}
        """See :func:`~nemo_sr.experiments.strategies.held.bytes_held`."""
        self.num_parameters = 0
        self._times: list[float] = []
        self._start = 0.0

    @property
    def step_seconds(self) -> float | None:
        """Median time of a step, data and optimizer included, without the first ones."""
        return statistics.median(self._times[3:]) if len(self._times) > 3 else None

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Start the clock."""
        self._start = time.perf_counter()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Stop it; measure what is held once."""
        self._times.append(time.perf_counter() - self._start)
        self.step = trainer.global_step
        if not self.bytes:
            self.bytes = bytes_held(pl_module)
            self.num_parameters = sum(param.numel() for param in pl_module.chunks.parameters())
