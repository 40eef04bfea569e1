# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Finished and unfinished runs, read from their folders: what trained, and its curves."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nemo_sr.experiments.strategies.worker import OUTCOME
from nemo_sr.plotting import Curve, NoCurvesError, read_curves


@dataclass(frozen=True)
class Result:
    """A run.

    Args:
        strategy: Choice of the group ``optim``.
        corpus: Name of the text.
        lr: Highest learning rate, as the strategy takes it.
        seed: Of weights, data order and noise.
        max_steps: Steps that it was to take.
        tokens_per_step: Of a global batch.
        validation: Loss in nats per token, over steps.
        training: Likewise.
        diverged: Whether it was ended for gradients that were not finite.
        steps_per_second: From its log, or as measured; None if unknown.
        bytes: Of what the first rank held, see ``held.bytes_held``; empty if not measured.
        num_parameters: Of the first rank; 0 if not measured.
        commit: Of the code that trained it; empty if unknown.
    """

    strategy: str
    corpus: str
    lr: float
    seed: int
    max_steps: int
    tokens_per_step: int
    validation: Curve
    training: Curve
    diverged: bool = False
    steps_per_second: float | None = None
    bytes: Mapping[str, int] = field(default_factory=dict)
    num_parameters: int = 0
    commit: str = ""

    @property
    def step(self) -> int:
        """The last one that was validated; 0 if none was."""
        return int(self.validation.steps[-1]) if len(self.validation.steps) else 0

    @property
    def loss(self) -> float | None:
        """Validation loss after the last step; None where it diverged or is not there yet."""
        if self.diverged or self.step < self.max_steps or not math.isfinite(self.validation.values[-1]):
            return None
        return float(self.validation.values[-1])

    @property
    def standing(self) -> tuple[str, str, str]:
        """Step, validation loss and perplexity, as texts."""
        if self.diverged:
            return f"{self.step}/{self.max_steps}", "diverged", "-"
        if not self.step:
            return f"0/{self.max_steps}", "none yet", "-"
        loss = float(self.validation.values[-1])
        return f"{self.step}/{self.max_steps}", f"{loss:.4f}", f"{math.exp(min(loss, 80.0)):.2f}"


def read_result(folder: Path, corpus: str | None = None) -> Result | None:
    """Read a run from its folder.

    Args:
        folder: ``exp_manager.explicit_log_dir``, of run.slurm or of the experiments.
        corpus: Name of the text; None: what the data prefix is called.

    Returns:
        None if it has not begun: there is no configuration, or no log.
    """
    import yaml

    found = [*folder.glob("config.yaml"), *folder.glob("jobs/*/config.yaml")]
    if not found:
        return None
    config = yaml.safe_load(max(found, key=lambda file: file.stat().st_mtime).read_text(encoding="utf-8"))
    try:
        curves = read_curves(folder)
    except NoCurvesError:
        return None
    outcome: dict[str, Any] = {}
    if (folder / OUTCOME).is_file():
        outcome = json.loads((folder / OUTCOME).read_text(encoding="utf-8"))
    empty = Curve(np.array([], dtype=np.int64), np.array([], dtype=np.float64))
    tokens = config["model"]["global_batch_size"] * config["model"]["encoder_seq_length"]
    seconds = outcome.get("step_seconds")
    speed = curves.get("tokens_per_sec", empty).values
    optim = config["optim"]
    return Result(
        strategy=_strategy(optim),
        corpus=corpus or _corpus(config["data"]["data_prefix"]),
        lr=optim["lr"] * (optim["sr_lr_scale"] if optim["name"] == "adamw_sr" else 1.0),
        seed=config["model"]["seed"],
        max_steps=config["trainer"]["max_steps"],
        tokens_per_step=tokens,
        validation=curves.get("val_loss", empty),
        training=curves.get("reduced_train_loss", empty),
        diverged=bool(outcome.get("diverged")),
        steps_per_second=1 / seconds if seconds else float(np.median(speed)) / tokens if len(speed) else None,
        bytes=outcome.get("bytes", {}),
        num_parameters=outcome.get("num_parameters", 0),
        commit=outcome.get("commit", ""),
    )


def _strategy(optim: dict[str, Any]) -> str:
    is_paper = optim["name"] == "adamw_sr" and optim["exp_avg_sq_rounding"] == "nearest"
    return "adamw_sr_paper" if is_paper else str(optim["name"])


def _corpus(prefix: Any) -> str:
    named = [part for part in prefix if isinstance(part, str)] if isinstance(prefix, list) else [prefix]
    return Path(named[0]).name.removesuffix("_text_document")
