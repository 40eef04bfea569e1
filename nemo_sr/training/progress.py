# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What a person sees of a run while it goes on: a line or a bar on rank 0, and the same numbers in the loggers."""

from __future__ import annotations

import math
import os
import resource
import sys
import time
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback
from tqdm import tqdm

from nemo_sr.training.metrics import SETS, log_metrics
from nemo_sr.training.throughput import Throughput

_LOGGED = ("reduced_train_loss", "lr", "grad_norm", "consumed_samples", "skipped_steps", "loss_spikes")


class ProgressCallback(Callback):  # type: ignore[misc]
    """Shows and logs how a run goes, on rank 0.

    A bar where there is a terminal, plain lines at ``trainer.log_every_n_steps`` where there is none, such as in a log
    file. The same numbers go to the loggers under the names of :mod:`nemo_sr.training.metrics`.

    Args:
        throughput: What a step is worth.
    """

    def __init__(self, throughput: Throughput) -> None:
        self._throughput = throughput
        self._bar: Any = None
        self._began = (0.0, 0)
        self._since = 0.0
        self._steps_since = 0
        self._speed: dict[str, float] = {}
        self.peak_memory_mib: list[float] = []

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Open the bar."""
        self._restart_clock()
        self._began = (time.monotonic(), trainer.global_step)
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
        if at_interval or not self._speed:
            seconds = max(time.monotonic() - self._since, 1e-9)
            share = pl_module.batch_schedule.mean_share(step - self._steps_since, step)
            self._speed = self._throughput.measure(seconds / self._steps_since, share)
        metrics = trainer.callback_metrics
        if at_interval:
            self._restart_clock()
            logged = {name: float(metrics[name]) for name in _LOGGED}
            log_metrics(trainer, {**logged, **self._speed, "peak_memory_mib": peak_memory_mib()}, step)
        if self._bar is not None:
            self._bar.set_postfix_str(self._describe(metrics), refresh=False)
            self._bar.update()
        elif at_interval:
            eta = describe_seconds(self._seconds_left(step, pl_module.config.trainer))
            line = f"step {step}/{trainer.max_steps}  {self._describe(metrics)}  eta {eta}"
            print(line, flush=True)  # noqa: T201

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the validation loss and print it."""
        if trainer.is_global_zero and "val_loss" in trainer.callback_metrics:
            found = trainer.callback_metrics
            metrics = {name: float(found[name]) for name in found if name.partition("/")[0] in SETS}
            log_metrics(trainer, metrics, trainer.global_step)
            if self._bar is None:
                line = "  ".join(
                    f"{name.replace('val_loss', 'validation loss').replace('/', ' ')} {loss:.4f}  "
                    f"perplexity {metrics[name.replace('val_loss', 'val_ppl')]:.2f}"
                    for name, loss in metrics.items()
                    if name.startswith("val_loss")
                )
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
        val_loss = "-"
        if "val_loss" in metrics:
            val_loss = f"{float(metrics['val_loss']):.4f} (ppl {float(metrics['val_ppl']):.4g})"
        speed = self._speed
        mfu = f"  MFU {speed['mfu']:.1%}" if "mfu" in speed else ""
        return (
            f"loss {float(metrics['reduced_train_loss']):.4f}  val_loss {val_loss}  lr {float(metrics['lr']):.2e}  "
            f"grad_norm {float(metrics['grad_norm']):.3f}  tokens/s {speed['tokens_per_sec']:.0f}  "
            f"step {speed['train_step_timing in s']:.3g} s  TFLOP/s {speed['tflops_per_sec_per_gpu']:.3g}{mfu}  "
            f"mem {peak_memory_mib():.0f} MiB"
        )

    def _seconds_left(self, step: int, trainer_config: Any) -> float:
        # Validations and saves are in the mean, as they will be in what is left.
        since, first = self._began
        last = min(trainer_config.max_steps, trainer_config.stop_after_steps or trainer_config.max_steps)
        return float((time.monotonic() - since) / max(step - first, 1) * max(last - step, 0))

    def _restart_clock(self) -> None:
        self._since = time.monotonic()
        self._steps_since = 0


def describe_seconds(seconds: float) -> str:
    """Return a duration as hours:minutes:seconds, with days before them where there are any."""
    whole = math.ceil(seconds)
    days, rest = divmod(whole, 86400)
    clock = f"{rest // 3600}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}d {clock}" if days else clock


def peak_memory_mib() -> float:
    """Return the most memory that this process has held: on its GPU if it uses one, else resident on the host."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _has_terminal() -> bool:
    if not sys.stdout.isatty():
        return False
    size = os.get_terminal_size(sys.stdout.fileno())
    return size.columns > 0 and size.lines > 0  # a terminal without a size shows no bar
