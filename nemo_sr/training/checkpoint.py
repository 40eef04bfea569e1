# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in Megatron-core's distributed format, and resuming from them to the bit."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
from megatron.core.dist_checkpointing.mapping import ShardedObject

from nemo_sr.training.heartbeat import HeartbeatCallback
from nemo_sr.training.optimizer_state import describe_training, load_training
from nemo_sr.training.resume import STATE_FILE, STATE_FORMAT, Start, checkpoint_name, find_complete, plan_layout


class CheckpointCallback(Callback):  # type: ignore[misc]
    """Saves at intervals, at the end, and on SIGTERM or Ctrl-C; resumes at the start.

    Args:
        folder: The run's folder of checkpoints, one folder ``step_XXXXXXXX`` each.
        start: Where the run starts.
        heartbeat: Told when a save begins, which may take long.
    """

    def __init__(self, folder: Path, start: Start, heartbeat: HeartbeatCallback) -> None:
        self.folder = folder
        self._heartbeat = heartbeat
        self.start = start
        self.newest = start.checkpoint
        self._stop_signal: int | None = None

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Remove what a killed run left unfinished; load the checkpoint and put Lightning's loops where they were."""
        if trainer.is_global_zero:
            for partial in self.folder.glob(f"{_PARTIAL}*"):
                shutil.rmtree(partial)
        if self.start.checkpoint is not None:
            _load(self.start, trainer, pl_module)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Turn SIGTERM and SIGINT into a stop after the step; Lightning, which would raise, restores its own later."""
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._on_stop_signal)

    def _on_stop_signal(self, signum: int, frame: Any) -> None:
        if signum == signal.SIGINT:
            if self._stop_signal == signum:
                raise KeyboardInterrupt
            if os.environ.get("RANK", "0") == "0":
                print("\nStopping with a checkpoint after this step; Ctrl-C again stops at once.", flush=True)  # noqa: T201
        self._stop_signal = signum

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Save if the interval is over, and stop where the configuration or a signal says so."""
        config = pl_module.config
        step = trainer.global_step
        terminated = trainer.strategy.reduce_boolean_decision(self._stop_signal is not None, all=False)
        stop_after = config.trainer.stop_after_steps
        stop = terminated or (stop_after is not None and step >= stop_after)
        if stop or step % config.exp_manager.checkpoint_callback_params.every_n_train_steps == 0:
            self._save(trainer, pl_module)
        if stop:
            trainer.should_stop = True
            if terminated or step % config.trainer.val_check_interval:
                trainer.limit_val_batches = 0  # Lightning validates once more before it stops

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Save the last step."""
        self._save(trainer, pl_module)

    def _save(self, trainer: Any, pl_module: Any) -> None:
        target = self.folder / checkpoint_name(trainer.global_step)
        if self.newest == target:
            return
        partial = self.folder / f"{_PARTIAL}{target.name}"
        if trainer.is_global_zero:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        trainer.strategy.barrier()
        with _signals_held(), self._heartbeat.busy("saving a checkpoint"):
            dist_checkpointing.save(_sharded_state(pl_module), str(partial))
        trainer.strategy.barrier()
        if trainer.is_global_zero:
            state = _run_state(trainer, pl_module, self.start.plan)
            _write_durably(partial / STATE_FILE, json.dumps(state, indent=2) + "\n")
            shutil.rmtree(target, ignore_errors=True)
            partial.rename(target)
            keep_newest(self.folder, pl_module.config.exp_manager.checkpoint_callback_params.save_top_k)
        trainer.strategy.barrier()
        self.newest = target


_PARTIAL = "partial_"


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Hold stop signals back until the save is over.

    Megatron-core starts processes to save with, one of which it keeps for later saves. They inherit the mask: a
    launcher that signals every process of a rank (torchrun, SLURM) must not kill them under it.
    """
    resource_tracker.ensure_running()  # starting it later would lift the mask
    held = {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def keep_newest(folder: Path, number: int) -> None:
    """Delete all but the newest `number` complete checkpoints in `folder`; -1 keeps all."""
    if number == -1:
        return
    for checkpoint in find_complete(folder)[:-number]:
        # Renamed first: a deletion that is interrupted must not leave half a checkpoint under a whole one's name.
        doomed = folder / f"{_PARTIAL}{checkpoint.name}"
        checkpoint.rename(doomed)
        shutil.rmtree(doomed)


def _write_durably(file: Path, text: str) -> None:
    with open(file, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def _run_state(trainer: Any, pl_module: Any, plan: dict[str, Any]) -> dict[str, Any]:
    config = pl_module.config
    return {
        "format": STATE_FORMAT,
        "step": trainer.global_step,
        "consumed_samples": trainer.global_step * config.model.global_batch_size,
        "data": plan,
        "optim_name": config.optim.name,
        "layout": plan_layout(config),
    }


def _sharded_state(pl_module: Any) -> dict[str, Any]:
    return {**describe_training(pl_module), "rng": _sharded_rng_state()}


def _sharded_rng_state() -> ShardedObject:
    return ShardedObject(
        "rng",
        _rng_state(),
        (
            parallel_state.get_pipeline_model_parallel_world_size(),
            parallel_state.get_tensor_model_parallel_world_size(),
        ),
        (parallel_state.get_pipeline_model_parallel_rank(), parallel_state.get_tensor_model_parallel_rank()),
        replica_id=parallel_state.get_data_parallel_rank(with_context_parallel=True),
    )


def _load(start: Start, trainer: Any, pl_module: Any) -> None:
    assert start.checkpoint is not None
    # There is a random state for each part of the model: of no use where there were other parts.
    others = {"rng": _sharded_rng_state()} if start.keeps_random_state else {}
    loaded = load_training(pl_module, start.checkpoint, others)
    _set_schedule(pl_module.lr_schedulers(), start.step)
    set_loop_progress(trainer, start.step)
    if start.keeps_random_state:
        _set_rng_state(loaded["rng"])


def _set_schedule(scheduler: Any, step: int) -> None:
    # NeMo's schedules are functions of the step. Their state_dict would also bring back the old max_steps and rates.
    scheduler.last_epoch = step - 1
    scheduler._step_count = step
    scheduler.step()


def set_loop_progress(trainer: Any, step: int) -> None:
    """Make Lightning's loops continue after `step` steps: global_step, validation intervals and max_steps."""
    loop = trainer.fit_loop.epoch_loop
    loop.manual_optimization.optim_step_progress.total.ready = step
    loop.manual_optimization.optim_step_progress.total.completed = step
    loop._batches_that_stepped = step
    for field in ("ready", "started", "processed", "completed"):
        setattr(loop.batch_progress.total, field, step)


def _rng_state() -> dict[str, Any]:
    state = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002 - the global state is what has to continue
        "torch": torch.get_rng_state(),
        "tracker": tensor_parallel.get_cuda_rng_tracker().get_states(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _set_rng_state(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    tensor_parallel.get_cuda_rng_tracker().set_states(state["tracker"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
