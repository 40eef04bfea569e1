# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What a run's folder says about the run: its configuration, how far it has come, its curves and their sums."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from nemo_sr.plotting.curves import Curve, read_curves

_CHECKPOINT = re.compile(r"step_(\d{8,})")
# They differ between any two runs.
_NAMES_OF_THE_RUN = (
    "exp_manager.name",
    "exp_manager.explicit_log_dir",
    "exp_manager.wandb_logger_kwargs.name",
    "data.index_mapping_dir",
)


@dataclass(frozen=True)
class Run:
    """A run, as its folder shows it. What the folder does not say is None."""

    name: str
    """The folder's name, with as many folders above it as tell it from the other runs'."""

    folder: Path
    curves: Mapping[str, Curve]
    """Curves by the names of the log; none if nothing has been logged yet."""

    config: Mapping[str, Any]
    """The configuration of the last start, by keys such as ``optim.lr``; empty if the folder holds none."""

    step: int
    """The last step that was logged or saved; 0 if none was."""

    @property
    def max_steps(self) -> int | None:
        """Steps of the whole run."""
        return self.config.get("trainer.max_steps")

    @property
    def is_finished(self) -> bool | None:
        """Whether the last step is done."""
        return None if self.max_steps is None else self.step >= self.max_steps

    @property
    def progress(self) -> str:
        """How far it has come, in words."""
        if self.max_steps is None:
            return f"step {self.step}"
        return (
            f"finished, {self.step} steps" if self.is_finished else f"unfinished: step {self.step} of {self.max_steps}"
        )

    @property
    def strategy(self) -> str | None:
        """``optim.name``."""
        return self.config.get("optim.name")

    @property
    def learning_rate(self) -> float | None:
        """The highest learning rate of the schedule; ``optim.sr_lr_scale`` counts with adamw_sr, as in training."""
        rate, scale = self.config.get("optim.lr"), self.config.get("optim.sr_lr_scale", 1.0)
        if rate is None:
            return None
        return float(rate) * float(scale) if self.strategy == "adamw_sr" else float(rate)

    @property
    def layout(self) -> str | None:
        """Ranks, and how the model is cut over them: ``DP2``, ``TP2 PP2``."""
        keys = ("trainer.devices", "trainer.num_nodes")
        if any(key not in self.config for key in keys):
            return None
        ranks = int(self.config[keys[0]]) * int(self.config[keys[1]])
        tensor = int(self.config.get("model.tensor_model_parallel_size", 1))
        pipeline = int(self.config.get("model.pipeline_model_parallel_size", 1))
        sizes = {"DP": ranks // (tensor * pipeline), "TP": tensor, "PP": pipeline}
        parts = [f"{name}{size}" for name, size in sizes.items() if size > 1]
        if self.config.get("model.sequence_parallel"):
            parts.append("SP")
        return " ".join(parts) or "1 rank"

    @property
    def final_val_loss(self) -> float | None:
        """The last validation loss, in nats per token."""
        curve = self.curves.get("val_loss")
        return float(curve.values[-1]) if curve is not None else None

    @property
    def best_val_loss(self) -> tuple[float, int] | None:
        """The lowest validation loss and its step; of several, the first."""
        curve = self.curves.get("val_loss")
        if curve is None or not np.isfinite(curve.values).any():
            return None
        index = int(np.nanargmin(np.where(np.isfinite(curve.values), curve.values, np.nan)))
        return float(curve.values[index]), int(curve.steps[index])

    @property
    def tokens_per_second(self) -> float | None:
        """The median over the log, of all ranks together."""
        curve = self.curves.get("tokens_per_sec")
        return float(np.median(curve.values)) if curve is not None else None

    @property
    def peak_memory_mib(self) -> float | None:
        """The most that rank 0 has held, in MiB."""
        curve = self.curves.get("peak_memory_mib")
        return float(curve.values.max()) if curve is not None else None


def read_run(folder: Path, name: str | None = None) -> Run:
    """Return what a run's folder says; see :func:`~nemo_sr.plotting.curves.read_curves`.

    Raises:
        NoCurvesError: it is not the folder of a run.
    """
    curves = read_curves(folder)
    saved = [int(match[1]) for path in folder.glob("checkpoints/step_*") if (match := _CHECKPOINT.fullmatch(path.name))]
    logged = [int(curve.steps[-1]) for curve in curves.values()]
    return Run(name or folder.name, folder, curves, read_config(folder), max([0, *saved, *logged]))


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Return the runs in `folders`, each under the shortest name that tells it from the others.

    Raises:
        NoCurvesError: one is not the folder of a run.
        ValueError: one is given twice.
    """
    paths = [folder.resolve() for folder in folders]
    for index, path in enumerate(paths):
        if path in paths[:index]:
            raise ValueError(f"Each run must be given once; {folders[index]} is given twice. Leave one out.")
    return [read_run(folder, name) for folder, name in zip(folders, _short_names(paths), strict=True)]


def read_config(folder: Path) -> dict[str, Any]:
    """Return the configuration of a run's last start, by keys such as ``optim.lr``; empty if there is none."""
    # Under SLURM every start has its own; hparams.yaml, of Lightning, holds model and optim alone.
    jobs = sorted(folder.glob("jobs/*/config.yaml"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in [folder / "config.yaml", *jobs]:
        if file.is_file():
            return flatten(_load(file))
    hparams = _load(folder / "hparams.yaml").get("cfg") if (folder / "hparams.yaml").is_file() else None
    if not isinstance(hparams, dict):
        return {}
    model = {key: value for key, value in hparams.items() if key not in ("optim", "target", "nemo_version")}
    return flatten({"model": model, "optim": hparams.get("optim", {})})


def find_differences(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Return the keys whose values differ between runs, with the value of each run, None where it is not known."""
    keys = sorted({key for run in runs for key in run.config} - {*_NAMES_OF_THE_RUN})
    table = {key: [run.config.get(key) for run in runs] for key in keys}
    # What a run of another version does not say is no difference.
    known = {key: [run.config[key] for run in runs if key in run.config] for key in keys}
    return {key: table[key] for key, values in known.items() if any(value != values[0] for value in values)}


def flatten(node: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a nested configuration by keys such as ``optim.lr``."""
    flat: dict[str, Any] = {}
    for key, value in node.items():
        if isinstance(value, dict):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _short_names(paths: Sequence[Path]) -> list[str]:
    depth = 1
    while len({path.parts[-depth:] for path in paths}) < len(paths):
        depth += 1
    return ["/".join(path.parts[-depth:]) for path in paths]


def _load(file: Path) -> dict[str, Any]:
    try:
        loaded = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):  # being written, or edited: the curves are there all the same
        return {}
    return loaded if isinstance(loaded, dict) else {}
