# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Replicas that have drifted apart."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.callbacks import Callback

from nemo_sr.megatron.replicas import ModelReplicas
from nemo_sr.replicas import ReplicaError


class ReplicaCheckCallback(Callback):  # type: ignore[misc]
    """Compares the weights of all ranks that hold the same ones, every so many steps.

    Put it before the callback that saves: what has drifted is not to be saved.

    Args:
        every_n_steps: Steps between checks.
    """

    def __init__(self, every_n_steps: int) -> None:
        self.every_n_steps = every_n_steps
        self._replicas: ModelReplicas | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Find the replicas."""
        self._replicas = ModelReplicas(list(pl_module.chunks))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Compare them at the interval.

        Raises:
            ReplicaError: weights differ. Every rank raises it.
        """
        if self._replicas is None or trainer.global_step % self.every_n_steps:
            return
        try:
            self._replicas.check()
        except ReplicaError as error:
            raise ReplicaError(f"step {trainer.global_step}: {error}") from None
