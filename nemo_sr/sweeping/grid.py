# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The runs of a sweep: every strategy with every learning rate, checked before any of them starts."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig

from nemo_sr.plotting.runs import flatten, read_config
from nemo_sr.training.config import ConfigError, compose_config, find_conf
from nemo_sr.training.guidance import show_config
from nemo_sr.training.validate import checks_of

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Of the configuration's own learning rate: the grid where none is given. The paper's advice of 2 to 4 is inside."""

_TAKEN = re.compile(
    r"(\+\+|\+|~)?(optim|optim\.(name|lr|sr_lr_scale|decoupled_lr)|exp_manager\.(name|explicit_log_dir)|"
    r"data\.index_mapping_dir)(=.*)?"
)
# What a batch system decides, and where things lie, is no difference between two starts of a run.
_FREE = re.compile(
    r"trainer\.(devices|num_nodes|stop_after_steps)|exp_manager\.(name|explicit_log_dir|resume_from_checkpoint|"
    r"wandb_logger_kwargs\..*)|data\.(data_prefix|index_mapping_dir|num_workers)|model\.tokenizer\..*"
)
# Checks that need neither devices nor data; a batch job makes the others where it runs.
_ANYWHERE = ("values", "strategy", "schedule")


@dataclass(frozen=True)
class Point:
    """One run of a sweep."""

    strategy: str
    """Choice of the group ``optim``."""

    lr: float
    """Highest learning rate, as the strategy takes it."""

    folder: Path
    """Of the run: STRATEGY/lr_LR in the sweep's folder."""

    words: tuple[str, ...]
    """The command line of pretrain_gpt.py, Hydra's."""

    config: DictConfig
    """The configuration that it composes."""

    @property
    def label(self) -> str:
        """How it is called where a person reads it."""
        return f"{self.strategy} at {self.lr:g}"


def make_grid(
    folder: Path,
    strategies: Sequence[str],
    rates: Sequence[float] | None,
    words: Sequence[str],
    *,
    trains_here: bool = True,
) -> list[Point]:
    """Return the runs of a sweep, by strategy and then by rate, with their configurations checked.

    Args:
        folder: The sweep's.
        strategies: Choices of the group ``optim``: adamw_sr, adamw_sr_paper, adamw, ...
        rates: Highest learning rates; None: :data:`FACTORS` times the configuration's.
        words: What all runs share, as pretrain_gpt.py takes it.
        trains_here: Check devices, layout and data as well, which are otherwise those of another machine.

    Raises:
        ConfigError: the grid or one of its runs cannot be; the message names the run.
    """
    known = sorted(path.stem for path in (find_conf() / "optim").glob("*.yaml"))
    for name in strategies:
        if name not in known:
            raise ConfigError(f"--strategies must be among {', '.join(known)}; '{name}' is none of them. Correct it.")
    for word in words:
        if _TAKEN.fullmatch(word):
            raise ConfigError(
                f"The sweep itself sets strategy, learning rate, names and folders; {word} sets one of them, too. "
                "Leave it out, and use --strategies, --rates and --output."
            )
    if rates is None:
        rates = [factor * float(compose_config(list(words)).optim.lr) for factor in FACTORS]
    ordered = sorted({float(f"{rate:.3g}") for rate in rates})
    if not ordered or not all(0 < rate < float("inf") for rate in ordered):
        raise ConfigError(f"--rates must be numbers above 0; they are {list(rates)}. Give them as 1e-3,3e-3,1e-2.")
    points = [_make_point(folder, name, rate, words) for name in dict.fromkeys(strategies) for rate in ordered]
    for point in points:
        _check(point, trains_here)
    return points


def find_changes(point: Point) -> list[str]:
    """Return the keys by which what is in a run's folder was trained otherwise than the sweep now asks for."""
    before = read_config(point.folder)
    now = flatten(_as_read(point.config))
    return sorted(key for key in before if not _FREE.fullmatch(key) and key in now and before[key] != now[key])


def _make_point(folder: Path, strategy: str, rate: float, words: Sequence[str]) -> Point:
    run = folder / strategy / f"lr_{rate:g}"
    own = [
        f"optim={strategy}",
        f"optim.lr={rate:g}",
        "optim.sr_lr_scale=1",  # the rates are everyone's
        f"exp_manager.name={strategy}_lr_{rate:g}",
        f"exp_manager.explicit_log_dir={json.dumps(str(run))}",
        # Jobs that begin together must not write one cache of sample orders.
        f"data.index_mapping_dir={json.dumps(str(folder / 'index' / f'{strategy}_{rate:g}'))}",
        "exp_manager.checkpoint_callback_params.save_last_n=1",
        "exp_manager.checkpoint_callback_params.save_top_k=0",
    ]
    return Point(strategy, rate, run, (*words, *own), compose_config([*words, *own]))


def _check(point: Point, trains_here: bool) -> None:
    try:
        for what, check in checks_of(point.config):
            if trains_here or what in _ANYWHERE:
                check()
        _check_use(point.config)
    except ConfigError as error:
        raise ConfigError(f"{point.label}: {error}") from None


def _check_use(config: DictConfig) -> None:
    trainer = config.trainer
    if trainer.limit_val_batches == 0 or trainer.val_check_interval > trainer.max_steps:
        raise ConfigError(
            "A sweep compares validation losses; trainer.limit_val_batches must be above 0 and "
            f"trainer.val_check_interval at most trainer.max_steps={trainer.max_steps}. They are "
            f"{trainer.limit_val_batches} and {trainer.val_check_interval}."
        )
    if not config.exp_manager.create_tensorboard_logger:
        raise ConfigError(
            "A sweep reads the losses from TensorBoard logs; exp_manager.create_tensorboard_logger is false. Leave it "
            "out."
        )


def _as_read(config: DictConfig) -> dict[str, Any]:
    """Return a configuration as it comes back from the file that a run writes."""
    read: dict[str, Any] = yaml.safe_load(show_config(config))
    return read
