# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""When a run saves, and how it goes on from a checkpoint to the bit."""

from __future__ import annotations

import math
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from megatron.core import parallel_state, tensor_parallel
from megatron.core.dist_checkpointing.mapping import ShardedObject

from nemo_sr.models.description import ModelDescription
from nemo_sr.training.heartbeat import HeartbeatCallback
from nemo_sr.training.model_file import describe_model
from nemo_sr.training.optimizer_state import describe_training, load_training
from nemo_sr.training.resume import STATE_FORMAT, Start, checkpoint_folder, plan_layout
from nemo_sr.training.run_lock import stop_file
from nemo_sr.training.saving import About, CheckpointWriter
from nemo_sr.training.skipping import DivergedError
from nemo_sr.training.validate import tokenizer_files
from nemo_sr.training.values import parse_time


class CheckpointCallback(Callback):  # type: ignore[misc]
    """Saves at intervals, at the end, on SIGTERM, SIGUSR1 or Ctrl-C, a stop file or a time limit; resumes at the start.

    A step that is validated is saved after its validation, with its loss.

    Args:
        config: The whole configuration.
        start: Where the run starts.
        heartbeat: Told when a save begins, which may take long.
        began: When the command was given, in seconds since 1970, for trainer.max_time; None: now.
    """

    def __init__(self, config: Any, start: Start, heartbeat: HeartbeatCallback, began: float | None = None) -> None:
        self._heartbeat = heartbeat
        params = config.exp_manager.checkpoint_callback_params
        self.writer = CheckpointWriter(
            checkpoint_folder(config),
            asynchronous=params.async_save,
            newest=params.save_last_n,
            best=params.save_top_k,
        )
        self.start = start
        self.writer.newest = start.checkpoint
        self._saved_step = start.step if start.checkpoint is not None else None
        self._stop_signal: int | None = None
        limit = config.trainer.max_time
        self._deadline = math.inf if limit is None else (began or time.time()) + parse_time(limit)
        self._stop_file = stop_file(Path(config.exp_manager.explicit_log_dir))
        self._saves_after_validation = False

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Load the checkpoint and put Lightning's loops where they were."""
        if self.start.checkpoint is not None:
            _load(self.start, trainer, pl_module)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Turn signals to stop into a stop after the step; Lightning, which would raise, restores its own later.

        SIGUSR1 is what SLURM is usually asked to send ahead of a job's time limit.
        """
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(signum, self._on_stop_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})  # where pretrain.main let it wait

    def _on_stop_signal(self, signum: int, frame: Any) -> None:
        if signum == signal.SIGINT:
            if self._stop_signal == signum:
                raise KeyboardInterrupt
            if os.environ.get("RANK", "0") == "0":
                print("\nStopping with a checkpoint after this step; Ctrl-C again stops at once.", flush=True)  # noqa: T201
        self._stop_signal = signum

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Save if the interval is over, and stop where the configuration or a signal says so."""
        self.writer.finish(wait=False)
        config = pl_module.config
        step = trainer.global_step
        terminated = trainer.strategy.reduce_boolean_decision(self._is_asked_to_stop(trainer), all=False)
        stop_after = config.trainer.stop_after_steps
        stop = terminated or (stop_after is not None and step >= stop_after)
        validates = config.trainer.limit_val_batches > 0 and step % config.trainer.val_check_interval == 0
        if stop:
            trainer.should_stop = True
            if terminated or not validates:
                validates = False
                trainer.limit_val_batches = 0  # Lightning validates once more before it stops
        interval = config.exp_manager.checkpoint_callback_params.every_n_train_steps
        due = stop or step >= trainer.max_steps or step % interval == 0
        self._saves_after_validation = due and validates
        if due and not validates:
            self._save(trainer, pl_module, None)

    def _is_asked_to_stop(self, trainer: Any) -> bool:
        if self._stop_signal is not None:
            return True
        return bool(trainer.is_global_zero) and (time.time() >= self._deadline or self._stop_file.exists())

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Save the step that was validated, with its loss, if it is to be saved."""
        if self._saves_after_validation:
            self._saves_after_validation = False
            self._save(trainer, pl_module, float(trainer.callback_metrics["val_loss"]))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Save the last step, and wait until it is saved."""
        # Lightning takes the handlers away; what has ended must not be killed by a signal to stop.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        self._save(trainer, pl_module, None)
        with self._heartbeat.busy("saving a checkpoint"):
            self.writer.finish(wait=True)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Save what the last good step left, where all ranks fail alike and none waits for another."""
        if isinstance(exception, DivergedError):
            self._save(trainer, pl_module, None)
            self.writer.finish(wait=True)

    def _save(self, trainer: Any, pl_module: Any, val_loss: float | None) -> None:
        step = trainer.global_step
        if self._saved_step == step:
            return
        config = pl_module.config
        layout = plan_layout(config)
        samples = pl_module.batch_schedule.consumed_after(step)
        run_state = {
            "format": STATE_FORMAT,
            "step": step,
            "consumed_samples": samples,
            "data": self.start.plan,
            "optim_name": config.optim.name,
            "layout": layout,
            "skipped_steps": pl_module.skipped.state_dict(),
            "loss_spikes": pl_module.spikes.state_dict(),
            **_describe_model(config, pl_module.vocab_size),
        }
        about = About(
            step=step,
            consumed_samples=samples,
            val_loss=val_loss if val_loss is not None and math.isfinite(val_loss) else None,
            layout={"ranks": trainer.world_size, **layout},
            run_state=run_state,
        )
        with self._heartbeat.busy("saving a checkpoint"):
            self.writer.save(_sharded_state(pl_module), about)
        self._saved_step = step


def _describe_model(config: Any, vocab_size: int) -> dict[str, Any]:
    tokenizer = {name: str(path.resolve()) for name, path in tokenizer_files(config.data, config.model).items()}
    return describe_model(ModelDescription.from_config(config.model, vocab_size), tokenizer)


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
    files = start.manifest.files if start.manifest else None
    loaded = load_training(pl_module, start.checkpoint, others, files, weights_alone=start.takes_weights_alone)
    _set_schedule(pl_module.lr_schedulers(), start.step)
    set_loop_progress(trainer, start.step)
    if start.skipped_steps is not None:
        pl_module.skipped.load_state_dict(start.skipped_steps)
    if start.loss_spikes is not None:
        pl_module.spikes.load_state_dict(start.loss_spikes)
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
