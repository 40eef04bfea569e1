# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The part of a start-up's timeline that Lightning runs."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.callbacks import Callback

from nemo_sr.training.startup import Timeline, say_above_bar


class StartupCallback(Callback):  # type: ignore[misc]
    """Ends the phases of a start-up, and says after the first step how long each took, on rank 0.

    The first of a trainer's callbacks: what the others do belongs to the next phase.

    Args:
        timeline: The phases so far.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline: Timeline | None = timeline

    def _end(self, phase: str) -> None:
        if self._timeline is not None:
            self._timeline.end(phase)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """End the data, which Lightning sets up first."""
        self._end("data")

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """End the model and its optimizer."""
        self._end("model")

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """End the reading of a checkpoint."""
        self._end("checkpoint")

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Say how long everything took, once."""
        self._end("first step")
        if self._timeline is not None and trainer.is_global_zero:
            say_above_bar(str(self._timeline))
        self._timeline = None
