# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Where a run's metrics go: TensorBoard and Weights & Biases through NeMo's exp_manager, and a CSV file of our own."""

from __future__ import annotations

import contextlib
import importlib.util
import secrets
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from nemo_sr.training.config import ConfigError
from nemo_sr.training.validation_sets import validation_sets

# In a folder: exp_manager moves away the files that it finds beside its own.
WANDB_ID_FILE = Path("wandb") / "id.txt"


def check_loggers(experiment: DictConfig) -> None:
    """Check that what the asked-for loggers need is there.

    Raises:
        ConfigError: naming the key or the package that is missing.
    """
    if not experiment.create_wandb_logger:
        return
    if experiment.wandb_logger_kwargs.project is None:
        raise ConfigError(
            "exp_manager.wandb_logger_kwargs.project must be given with exp_manager.create_wandb_logger=true; it is "
            "null. Set it, or set exp_manager.create_wandb_logger=false."
        )
    if importlib.util.find_spec("wandb") is None:
        raise ConfigError(
            "exp_manager.create_wandb_logger=true needs the package wandb; it is not installed. Run: pip install wandb"
        )


def start_loggers(trainer: Any, config: DictConfig, *, step: int, rank: int) -> None:
    """Give a trainer the loggers that a configuration asks for, by NeMo's exp_manager, and make the run's folder.

    A run that starts again goes on in the same logs. What an interrupted start logged after its last checkpoint will
    be logged again: it is taken out of the TensorBoard log and the CSV file, and Weights & Biases shows both.

    Args:
        trainer: The Lightning trainer.
        config: The whole configuration.
        step: The step that the run goes on from, 0 at its beginning.
        rank: This process's; rank 0 logs.
    """
    from nemo.utils import logging as nemo_logging
    from nemo.utils.exp_manager import exp_manager

    from nemo_sr.training.csv_logger import CSVLogger

    experiment = config.exp_manager
    folder = Path(experiment.explicit_log_dir)
    board: dict[str, Any] = {"default_hp_metric": False}  # a metric of its own, always -1
    if step:
        board["purge_step"] = step + 1
    # It calls every run on several nodes one without SLURM: it asks for an attribute that Lightning 2 has not.
    quiet = nemo_logging.temp_verbosity(nemo_logging.CRITICAL) if trainer.num_nodes > 1 else contextlib.nullcontext()
    with quiet:
        exp_manager(
            trainer,
            {
                "explicit_log_dir": experiment.explicit_log_dir,
                "create_tensorboard_logger": experiment.create_tensorboard_logger,
                "summary_writer_kwargs": board,
                "create_wandb_logger": experiment.create_wandb_logger,
                "wandb_logger_kwargs": _wandb_kwargs(experiment, folder, rank),
                "create_checkpoint_callback": False,
                "create_preemption_callback": False,
                "log_step_timing": False,
                "disable_validation_on_resume": False,
                "log_tflops_per_sec_per_gpu": False,
                "seconds_to_sleep": 0,
            },
        )
    if experiment.create_csv_logger and rank == 0:
        trainer.loggers = [*trainer.loggers, CSVLogger(folder, step, validation_sets(config.data))]


def _wandb_kwargs(experiment: DictConfig, folder: Path, rank: int) -> dict[str, Any] | None:
    if not experiment.create_wandb_logger:
        return None
    given: dict[str, Any] = OmegaConf.to_container(experiment.wandb_logger_kwargs)  # type: ignore[assignment]
    if given["id"] is None and rank == 0:  # the others log nothing
        given["id"] = _wandb_id(folder)
    return given


def _wandb_id(folder: Path) -> str:
    """Return the identity of the run, which starts that go on with it share."""
    path = folder / WANDB_ID_FILE
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(secrets.token_hex(4) + "\n", encoding="ascii")
    return path.read_text(encoding="ascii").strip()
