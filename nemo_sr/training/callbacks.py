# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What a person sees of a run: progress, the TensorBoard log, and replicas that have drifted apart."""

from __future__ import annotations

import os
import resource
import sys
import time
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback
from tqdm import tqdm

from nemo_sr.megatron.replicas import ModelReplicas
from nemo_sr.replicas import ReplicaError

_LOGGED = ("reduced_train_loss", "lr", "grad_norm", "consumed_samples", "skipped_steps")


class ProgressCallback(Callback):  # type: ignore[misc]
    """Shows and logs step, loss, validation loss, tokens per second, learning rate and gradient norm, on rank 0.

    A bar where there is a terminal, plain lines at ``trainer.log_every_n_steps`` where there is none. The same numbers
    go to the logger under NeMo's names.
    """

    def __init__(self) -> None:
        self._bar: Any = None
        self._since = 0.0
        self._steps_since = 0
        self._tokens_per_second = 0.0
        self.peak_memory_mib: list[float] = []

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Open the bar."""
        self._restart_clock()
        if trainer.is_global_zero and _has_terminal():
            self._bar = tqdm(
                total=trainer.max_steps,
                initial=trainer.global_step,
                desc=pl_module.config.exp_manager.name,
                unit="step",
                file=sys.stdout,
                dynamic_ncols=True,
            )

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Update the bar; log and print at the interval."""
        if not trainer.is_global_zero:
            return
        self._steps_since += 1
        step = trainer.global_step
        at_interval = step % pl_module.config.trainer.log_every_n_steps == 0
        if at_interval or self._tokens_per_second == 0.0:
            model = pl_module.config.model
            tokens = self._steps_since * model.global_batch_size * model.encoder_seq_length
            self._tokens_per_second = tokens / max(time.monotonic() - self._since, 1e-9)
        metrics = trainer.callback_metrics
        if at_interval:
            self._restart_clock()
            logged = {name: float(metrics[name]) for name in _LOGGED}
            self._log(trainer, {**logged, "tokens_per_sec": self._tokens_per_second}, step)
        if self._bar is not None:
            self._bar.set_postfix_str(self._describe(metrics), refresh=False)
            self._bar.update()
        elif at_interval:
            print(f"step {step}/{trainer.max_steps}  {self._describe(metrics)}", flush=True)  # noqa: T201

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the validation loss and print it."""
        if trainer.is_global_zero and "val_loss" in trainer.callback_metrics:
            names = ("val_loss", "val_ppl")
            metrics = {name: float(trainer.callback_metrics[name]) for name in names}
            self._log(trainer, metrics, trainer.global_step)
            if self._bar is None:
                line = f"validation loss {metrics['val_loss']:.4f}  perplexity {metrics['val_ppl']:.2f}"
                print(f"step {trainer.global_step}/{trainer.max_steps}  {line}", flush=True)  # noqa: T201
        self._restart_clock()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Close the bar and ask all ranks for their peak memory."""
        self._close()
        self.peak_memory_mib = [0.0] * trainer.world_size
        torch.distributed.all_gather_object(self.peak_memory_mib, peak_memory_mib())

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Close the bar."""
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def _describe(self, metrics: Any) -> str:
        val_loss = f"{float(metrics['val_loss']):.4f}" if "val_loss" in metrics else "-"
        return (
            f"loss {float(metrics['reduced_train_loss']):.4f}  val_loss {val_loss}  "
            f"tokens/s {self._tokens_per_second:.0f}  lr {float(metrics['lr']):.2e}  "
            f"grad_norm {float(metrics['grad_norm']):.3f}"
        )

    def _restart_clock(self) -> None:
        self._since = time.monotonic()
        self._steps_since = 0

    @staticmethod
    def _log(trainer: Any, metrics: dict[str, float], step: int) -> None:
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=step)


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


def _has_terminal() -> bool:
    if not sys.stdout.isatty():
        return False
    size = os.get_terminal_size(sys.stdout.fileno())
    return size.columns > 0 and size.lines > 0  # a terminal without a size shows no bar


def peak_memory_mib() -> float:
    """Return the most memory that this process has held: on its GPU if it uses one, else resident on the host."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
