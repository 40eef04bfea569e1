# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Traces of a window of steps by torch's profiler, and names for the parts of a step in those and in Nsight Systems."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback
from omegaconf import DictConfig

FOLDER = "profile"


@contextlib.contextmanager
def named_range(name: str, *, nvtx: bool) -> Iterator[None]:
    """Name what runs inside, for torch's profiler, and with `nvtx` for Nsight Systems."""
    with torch.profiler.record_function(name):
        if nvtx:
            torch.cuda.nvtx.range_push(name)  # type: ignore[no-untyped-call]
        yield
        if nvtx:
            torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]


class TorchProfileCallback(Callback):  # type: ignore[misc]
    """Writes a trace of a window of steps, for chrome://tracing or Perfetto, into ``profile`` in the run's folder.

    Args:
        config: The whole configuration, whose ``model.torch_profile`` says which steps and ranks.
    """

    def __init__(self, config: DictConfig) -> None:
        self._options = config.model.torch_profile
        self._folder = Path(config.exp_manager.explicit_log_dir) / FOLDER
        self._profile: Any = None
        self._first = 0

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Start at the first step of the window, or where the run goes on within it."""
        options, step = self._options, trainer.global_step + 1
        within = options.enabled and options.start_step <= step <= options.end_step
        if not within or self._profile is not None or trainer.global_rank not in options.ranks:
            return
        activities = [torch.profiler.ProfilerActivity.CPU]
        if not pl_module.on_cpu:
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._first = step
        self._profile = torch.profiler.profile(activities=activities)
        self._profile.start()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Write the trace after the last step of the window."""
        if trainer.global_step >= self._options.end_step:
            self._write(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Write what there is of a window that the run did not reach the end of."""
        self._write(trainer)

    def _write(self, trainer: Any) -> None:
        if self._profile is None:
            return
        self._profile.stop()
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"steps_{self._first}-{trainer.global_step}_rank_{trainer.global_rank}.json.gz"
        self._profile.export_chrome_trace(str(path))
        self._profile = None
        print(f"Trace of steps {self._first} to {trainer.global_step}: {path}", flush=True)  # noqa: T201
