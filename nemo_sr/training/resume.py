# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Where a run stands and how it goes on: its newest checkpoint and the order of its data. Imports no NeMo."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from nemo_sr.training.config import ConfigError
from nemo_sr.training.validate import prefixes

STATE_FILE = "run_state.json"
_COMPLETE = re.compile(r"step_\d{8}")


@dataclass(frozen=True)
class Start:
    """Where a run starts."""

    step: int
    """Steps that are done."""

    consumed_samples: int
    """Training samples that they used."""

    plan: dict[str, Any]
    """What decides the order of the samples."""

    checkpoint: Path | None
    """The checkpoint to load."""

    notes: tuple[str, ...]
    """What the user should know."""


def find_start(config: DictConfig) -> Start:
    """Return where the run of `config` starts: at its newest complete checkpoint, or at the beginning.

    Raises:
        ConfigError: the checkpoint cannot be continued under this configuration.
    """
    checkpoint = find_newest(checkpoint_folder(config))
    wanted = plan_data(config)
    if checkpoint is None:
        return Start(0, 0, wanted, None, ())
    state = read_state(checkpoint)
    if state["optim_name"] != config.optim.name:
        raise ConfigError(
            f"A resumed run must keep its optim.name, since the optimizer's state depends on it; {checkpoint} has "
            f"{state['optim_name']}, the configuration {config.optim.name}. Set it back, or start a new run with "
            "another exp_manager.name."
        )
    plan, notes = keep_order(wanted, state["data"])
    resuming = f"Resuming from {checkpoint}: step {state['step']} of {config.trainer.max_steps}."
    return Start(state["step"], state["consumed_samples"], plan, checkpoint, (resuming, *notes))


def checkpoint_folder(config: DictConfig) -> Path:
    """Return the folder of a run's checkpoints."""
    return Path(config.exp_manager.explicit_log_dir) / "checkpoints"


def checkpoint_name(step: int) -> str:
    """Return the name of the checkpoint of `step`."""
    return f"step_{step:08d}"


def find_newest(folder: Path) -> Path | None:
    """Return the complete checkpoint of the highest step in `folder`, or None. Unfinished ones have another name."""
    complete = [
        path for path in folder.glob("step_*") if _COMPLETE.fullmatch(path.name) and (path / STATE_FILE).is_file()
    ]
    return max(complete, key=lambda path: path.name, default=None)


def read_state(checkpoint: Path) -> dict[str, Any]:
    """Return what a checkpoint says about its run: step, consumed samples, data order, layout, schedule, versions."""
    state: dict[str, Any] = json.loads((checkpoint / STATE_FILE).read_text(encoding="utf-8"))
    return state


def plan_data(config: DictConfig) -> dict[str, Any]:
    """Return what decides the order of the samples; it is saved with every checkpoint."""
    batch = config.model.global_batch_size
    return {
        "train_samples": config.trainer.max_steps * batch,
        "valid_samples": config.trainer.limit_val_batches * batch,
        "data_fingerprint": fingerprint_data(prefixes(config.data.data_prefix)[0]),
        "splits_string": config.data.splits_string,
        "encoder_seq_length": config.model.encoder_seq_length,
        "seed": config.model.seed,
    }


def fingerprint_data(paths: Sequence[str]) -> str:
    """Return a hash of the data sets' .idx files and of the sizes of their .bin files.

    Megatron-core files its cached sample orders under the data's path: other data under the same path would get them.
    """
    digest = hashlib.blake2b(digest_size=8)
    for path in paths:
        with open(f"{path}.idx", "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        digest.update(str(os.path.getsize(f"{path}.bin")).encode())
    return digest.hexdigest()


def keep_order(wanted: dict[str, Any], saved: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the plan that continues the saved order, and what the user should know about it.

    The order of a GPTDataset depends on the number of samples asked for, so the saved numbers are kept where they
    suffice.

    Args:
        wanted: What the present configuration asks for.
        saved: What the checkpoint was trained with.

    Raises:
        ConfigError: the saved order cannot serve.
    """
    keys = {
        "data_fingerprint": "the contents of data.data_prefix",
        "splits_string": "data.splits_string",
        "encoder_seq_length": "model.encoder_seq_length",
        "seed": "model.seed",
    }
    for key, name in keys.items():
        if wanted[key] != saved[key]:
            raise ConfigError(
                f"A resumed run must read the data in the order it began with, which depends on {name}; the checkpoint "
                f"has {saved[key]}, the configuration {wanted[key]}. Set it back, or start a new run with another "
                "exp_manager.name."
            )
    plan, notes = dict(saved), []
    for key, cause in {"train_samples": "trainer.max_steps", "valid_samples": "trainer.limit_val_batches"}.items():
        if wanted[key] > saved[key]:
            raise ConfigError(
                f"A resumed run must read the data in the order it began with, which depends on the number of samples "
                f"asked for; the checkpoint asked for {saved[key]} ({key}), the configuration needs {wanted[key]}. Set "
                f"{cause} (times model.global_batch_size) back, or start a new run with another exp_manager.name."
            )
        if wanted[key] < saved[key]:
            notes.append(
                f"{key}: kept the checkpoint's {saved[key]}, where {wanted[key]} would do, for the same order."
            )
    return plan, notes
