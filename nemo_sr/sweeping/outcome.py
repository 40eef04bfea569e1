# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What has become of a sweep's run, by its folder alone: whoever started it, here or in a batch job."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nemo_sr.plotting import NoCurvesError
from nemo_sr.plotting.runs import Run, read_run
from nemo_sr.sweeping.grid import Point
from nemo_sr.training.skipping import DIVERGED

Status = Literal["finished", "diverged", "failed", "unfinished", "not started"]

_ERROR = re.compile(r"^(?:rank \d+: )?error: (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """A run of a sweep as it stands."""

    point: Point
    status: Status
    """diverged: its gradients were not finite too often, or it ended with a validation loss that is not finite or
    is above the first training loss that was logged. failed: it ended with another error."""

    loss: float | None
    """Validation loss at the end, in nats per token; None unless it finished."""

    run: Run | None
    """What its folder says; None if it has no log."""

    reason: str = ""
    """The error with which it ended."""

    @property
    def is_settled(self) -> bool:
        """Whether another start would change nothing."""
        return self.status in ("finished", "diverged")


def find_outcome(point: Point) -> Outcome:
    """Return how a run stands."""
    try:
        run = read_run(point.folder, point.label)
    except NoCurvesError:
        run = None
    reason = _last_error(point.folder)
    step = 0 if run is None else run.step
    if run is not None and run.curves and step >= int(point.config.trainer.max_steps):
        return _judge(point, run)
    if reason.startswith(DIVERGED):
        return Outcome(point, "diverged", None, run, f"gradients were not finite; step {step}")
    if reason:
        return Outcome(point, "failed", None, run, reason)
    return Outcome(point, "unfinished" if step else "not started", None, run)


def _judge(point: Point, run: Run) -> Outcome:
    """Return how a run stands that has done all its steps."""
    loss = run.final_val_loss
    if loss is None:
        return Outcome(point, "failed", None, run, "it has no validation loss")
    first = float(run.curves["reduced_train_loss"].values[0])
    if not math.isfinite(loss) or loss > first:
        return Outcome(point, "diverged", None, run, f"the loss went from {first:.4g} to {loss:.4g}")
    return Outcome(point, "finished", loss, run)


def newest_log(folder: Path) -> Path | None:
    """Return what rank 0 printed in the run's last start."""
    logs = list(folder.glob("jobs/*/rank_0000.log"))
    return max(logs, key=lambda file: file.stat().st_mtime) if logs else None


def _last_error(folder: Path) -> str:
    log = newest_log(folder)
    found = _ERROR.findall(log.read_text(encoding="utf-8", errors="replace")) if log else []
    if found:
        return str(found[0])
    if log is not None and "Traceback (most recent call last)" in (text := log.read_text(errors="replace")):
        return text.strip().splitlines()[-1]
    return ""
