# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Pretrain a GPT: checks the command line, then hands over to Hydra, NeMo and Lightning."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra._internal.utils import get_args_parser
from omegaconf import DictConfig

from nemo_sr.training.batch import describe_batch
from nemo_sr.training.config import (
    DEFAULT_CONFIG,
    ConfigError,
    compose_config,
    find_conf,
    register_schema,
    rewrite_argv,
)
from nemo_sr.training.guidance import help_text, show_config
from nemo_sr.training.launch import Launch, check_launch, detect_launch, exit_with, start_processes
from nemo_sr.training.resume import Start, find_start, find_unaltered_start
from nemo_sr.training.run_folder import SaveError
from nemo_sr.training.run_lock import find_other_writer, lock_file, stop_file
from nemo_sr.training.skipping import DivergedError
from nemo_sr.training.startup import Timeline, import_libraries, uncollected_imports
from nemo_sr.training.validate import check_config, tokenizer_files

CONFIG_FILE = "config.yaml"
"""In a run's folder: what its last start ran with. exp_manager moves that of earlier starts into run_0, run_1, ..."""


def main() -> None:
    """Run the command line: check it before anything starts, then train.

    Exit status: 0 when the run has ended or was stopped with a checkpoint, 1 when it failed, 2 for a command line that
    cannot run.
    """
    timeline = Timeline.of_process(os.environ)
    timeline.end("imports")
    launch = detect_launch(os.environ)
    if launch.launcher == "slurm":
        # SLURM sends it to stop a run in time. Until there is somebody to take it, it waits.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    sys.argv[1:] = argv = rewrite_argv(sys.argv[1:])
    words = get_args_parser().parse_args(argv)
    if words.help:
        print(help_text())  # noqa: T201
        return
    start = None
    informs_only = bool(words.info or words.hydra_help or words.cfg)
    try:
        config = compose_config(argv)
        if words.cfg == "job":
            print(show_config(config, words.package))  # noqa: T201
            return
        if not informs_only:
            check_launch(launch, config.trainer)
            check_config(config)
            _check_writer(config)
            start = find_start(config)
            if (reason := _nothing_to_do(config, start)) is not None:
                _say(launch, "\n".join([reason, *_places(config, start.checkpoint)]))
                return
            if launch.launcher == "none" and config.trainer.devices * config.trainer.num_nodes > 1:
                sys.exit(start_processes(config.trainer, argv, began=timeline.began))
    except ConfigError as error:
        exit_with(str(error), launch)
    if config.trainer.accelerator == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before torch initialises CUDA
    timeline.end("configuration")
    _quieten()

    from nemo.core.config import hydra_runner

    from nemo_sr.replicas import ReplicaError

    def run(_: DictConfig) -> None:
        # What was checked is what runs; Hydra searches a --config-dir in another order.
        try:
            train(config, launch, start=start, timeline=timeline)
        except ConfigError as error:
            exit_with(str(error), launch)
        except (DivergedError, ReplicaError, SaveError) as error:
            exit_with(str(error), launch, status=1)

    register_schema()
    hydra_runner(config_path=str(find_conf()), config_name=DEFAULT_CONFIG)(run)()


def _run_folder(config: DictConfig) -> Path:
    return Path(config.exp_manager.explicit_log_dir)


def _check_writer(config: DictConfig) -> None:
    folder = _run_folder(config)
    if (owner := find_other_writer(folder)) is not None:
        raise ConfigError(
            f"A run must have one writer, and {lock_file(folder)} says that it is {owner}. Wait until that job is "
            "over, or take another exp_manager.name. If it is over, remove the file; slurm/run.slurm does so itself."
        )


def _nothing_to_do(config: DictConfig, start: Start) -> str | None:
    trainer = config.trainer
    stop = stop_file(_run_folder(config))
    if stop.exists():
        return f"{stop} says that this run is to stop. Remove it to go on."
    done = f"{start.checkpoint} has {start.step} of {trainer.max_steps} steps"
    if start.step >= trainer.max_steps:
        return f"This run is finished: {done}. Nothing to do."
    if trainer.stop_after_steps is not None and start.step >= trainer.stop_after_steps:
        return f"This run is at trainer.stop_after_steps={trainer.stop_after_steps}: {done}. Nothing to do."
    return None


def train(
    config: DictConfig,
    launch: Launch,
    callbacks: Sequence[Any] = (),
    start: Start | None = None,
    timeline: Timeline | None = None,
) -> None:
    """Train as `config` says, from the newest checkpoint of the run if there is one.

    Args:
        config: A complete configuration.
        launch: Who started this process.
        callbacks: Lightning callbacks beside our own.
        start: Where the run starts; None: find out.
        timeline: Of the start-up so far; None: it begins here.

    Raises:
        ConfigError: the checkpoint cannot be continued under this configuration.
        DivergedError: too many steps in a row had gradients that are not finite.
        ReplicaError: ranks that should hold the same weights do not.
    """
    on_cpu = config.trainer.accelerator == "cpu"
    with contextlib.ExitStack() as stack:
        if on_cpu:
            from nemo_sr.megatron import cpu_platform

            stack.enter_context(cpu_platform())
        _train(config, launch, callbacks, start or find_start(config), timeline or Timeline())


def _train(config: DictConfig, launch: Launch, callbacks: Sequence[Any], start: Start, timeline: Timeline) -> None:
    with uncollected_imports():
        from lightning.pytorch import Trainer

        from nemo_sr.planning.forecast import forecast_run
        from nemo_sr.training.callbacks import ReplicaCheckCallback
        from nemo_sr.training.checkpoint import CheckpointCallback
        from nemo_sr.training.datamodule import GPTDataModule
        from nemo_sr.training.heartbeat import HeartbeatCallback
        from nemo_sr.training.loggers import start_loggers
        from nemo_sr.training.lost_peer import LostPeerCallback
        from nemo_sr.training.module import GPTModule
        from nemo_sr.training.profiling import TorchProfileCallback
        from nemo_sr.training.progress import ProgressCallback
        from nemo_sr.training.startup_callback import StartupCallback
        from nemo_sr.training.strategy import MegatronStrategy
        from nemo_sr.training.telemetry import TelemetryCallback
        from nemo_sr.training.throughput import Throughput
        from nemo_sr.training.tokenizer import GPT2BPETokenizer

    timeline.end("imports")
    tokenizer = GPT2BPETokenizer(*tokenizer_files(config.data, config.model).values())
    # Before anything initialises CUDA or makes process groups, and on every rank: they go on from the same state.
    _say(launch, describe_batch(config))
    if (forecast := forecast_run(config, tokenizer.vocab_size)) is not None:
        _say(launch, forecast)
    timeline.end("plan")
    trainer = Trainer(
        accelerator=config.trainer.accelerator,
        devices=config.trainer.devices,
        num_nodes=config.trainer.num_nodes,
        strategy=MegatronStrategy(config.model),
        plugins=[_cluster_environment(launch)],
        max_steps=config.trainer.max_steps,
        val_check_interval=config.trainer.val_check_interval,
        check_val_every_n_epoch=None,
        limit_val_batches=config.trainer.limit_val_batches,
        num_sanity_val_steps=0,
        log_every_n_steps=config.trainer.log_every_n_steps,
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    trainer.strategy.setup_environment()  # Lightning calls it again, which leaves the process group as it is
    timeline.end("process groups")
    if config.exp_manager.verify_checksums and start.checkpoint is not None:
        start = _verify(trainer, config, start)
    for note in start.notes:
        _say(launch, note)
    heartbeat = HeartbeatCallback(config.trainer.heartbeat_timeout)
    saving = CheckpointCallback(config, start, heartbeat, timeline.began)
    progress = ProgressCallback(Throughput.of_run(config, tokenizer.vocab_size))
    telemetry = TelemetryCallback(config)
    lost_peer = LostPeerCallback(heartbeat, lambda: saving.writer.newest)
    every_n_steps = config.trainer.check_replicas_every_n_steps
    checks = [] if every_n_steps is None else [ReplicaCheckCallback(every_n_steps)]
    watching = [progress, telemetry, TorchProfileCallback(config)]
    trainer.callbacks.extend([StartupCallback(timeline), *checks, saving, *watching, *callbacks, lost_peer, heartbeat])
    start_loggers(trainer, config, step=start.step, rank=launch.rank)
    if launch.rank == 0:
        (_run_folder(config) / CONFIG_FILE).write_text(f"{show_config(config)}\n", encoding="utf-8")
    timeline.end("logging")
    module = GPTModule(config, tokenizer.vocab_size, trainer)
    try:
        trainer.fit(module, datamodule=GPTDataModule(config, tokenizer, start.plan, start.consumed_samples))
    except RuntimeError:
        if not lost_peer.has_reported:
            raise
        sys.exit(1)
    _summarize(trainer, config, saving, progress, telemetry)


def _verify(trainer: Any, config: DictConfig, start: Start) -> Start:
    """Return where to start, after all ranks together have read the files to start from."""
    import torch

    def gather(mine: list[str]) -> list[list[str]]:
        everyones: list[list[str]] = [[]] * trainer.world_size
        torch.distributed.all_gather_object(everyones, mine)
        return everyones

    return find_unaltered_start(config, start, rank=trainer.global_rank, num_ranks=trainer.world_size, gather=gather)


def _cluster_environment(launch: Launch) -> Any:
    from lightning.pytorch.plugins.environments import (
        LightningEnvironment,
        SLURMEnvironment,
        TorchElasticEnvironment,
    )

    if launch.launcher == "torchrun":
        return TorchElasticEnvironment()
    if launch.launcher == "slurm":
        return SLURMEnvironment(auto_requeue=False)
    return LightningEnvironment()


def _summarize(trainer: Any, config: DictConfig, checkpoints: Any, progress: Any, telemetry: Any) -> None:
    if not trainer.is_global_zero:
        return
    from nemo_sr.plotting import plot_losses

    log_dir = _run_folder(config)
    if config.exp_manager.create_tensorboard_logger:
        plot_losses(log_dir, log_dir / _PLOT)
    step, max_steps = trainer.global_step, config.trainer.max_steps
    how = "finished"
    if step < max_steps:
        limit = config.trainer.stop_after_steps
        how = "stopped; the same command resumes" if limit is None else "stopped by trainer.stop_after_steps"
    lines = [f"Step {step} of {max_steps}: {how}.", *_places(config, checkpoints.writer.newest)]
    if progress.peak_memory_mib:
        peaks = ", ".join(f"{peak:.0f}" for peak in progress.peak_memory_mib)
        lines.append(f"  peak memory      {peaks} MiB (one number a rank)")
    lines += [f"  rounding         {sentence}" for sentence in telemetry.advice()]
    print("\n".join(lines), flush=True)  # noqa: T201


_PLOT = "loss.png"


def _places(config: DictConfig, checkpoint: Path | None) -> list[str]:
    """Return where the results are, one line each."""
    log_dir = _run_folder(config)
    lines = [f"  checkpoint       {checkpoint}"]
    if any(log_dir.glob("events.out.tfevents.*")):
        lines.append(f"  TensorBoard log  {log_dir}  (tensorboard --logdir {log_dir})")
    if (log_dir / _PLOT).is_file():
        lines.append(f"  loss plot        {log_dir / _PLOT}")
    return lines


def _say(launch: Launch, message: str) -> None:
    if launch.rank == 0:
        print(message, flush=True)  # noqa: T201


def _quieten() -> None:
    """Keep out of a run's output what libraries say about packages and devices that we do not use."""
    warnings.filterwarnings("ignore", module=r"(megatron|nemo|lightning|torch|hydra|pytorch_lightning|nv_one_logger)\b")
    logging.getLogger("nv_one_logger").setLevel(logging.ERROR)  # it speaks while it is imported
    import_libraries()
    from nemo.utils import logging as nemo_logging

    nemo_logging.setLevel(nemo_logging.ERROR)
    import lightning.pytorch  # noqa: F401 - sets its loggers to INFO

    for name in ("lightning.pytorch", "lightning.fabric", "torch.distributed", "tensorboard"):
        logging.getLogger(name).setLevel(logging.ERROR)


if __name__ == "__main__":
    main()
