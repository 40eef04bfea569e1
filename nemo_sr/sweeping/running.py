# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Trains the runs of a sweep, one after another on this machine, or as an array of batch jobs."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from nemo_sr.sweeping.grid import Point
from nemo_sr.sweeping.outcome import Outcome, find_outcome

ARRAY_SCRIPT = "array.slurm"
_PROGRAM = [sys.executable, "-m", "nemo_sr.training.pretrain"]


class StoppedError(RuntimeError):
    """A signal ended the sweep; the same command goes on with it."""


def train_missing(points: Sequence[Point], say: Callable[[str], None]) -> None:
    """Train the runs that are not settled, each to its end; one that diverges or fails does not end the others.

    Args:
        points: The runs, in their order.
        say: What a person should read, line by line.

    Raises:
        StoppedError: SIGINT or SIGTERM came; the run that was going on has saved a checkpoint.
    """
    for number, point in enumerate(points, start=1):
        outcome = find_outcome(point)
        head = f"[{number}/{len(points)}] {point.label}: "
        if outcome.is_settled:
            say(f"{head}{describe(outcome)} (kept)")
            continue
        log = point.folder / "jobs" / f"sweep.{int(time.time())}" / "rank_0000.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        say(f"{head}training; see {log}")
        start = time.monotonic()
        _train(point, log)
        say(f"{head}{describe(find_outcome(point))} ({time.monotonic() - start:.0f} s)")


def describe(outcome: Outcome) -> str:
    """Return in a few words what has become of a run."""
    if outcome.loss is not None:
        return f"validation loss {outcome.loss:.4f}"
    reason = outcome.reason if len(outcome.reason) < 100 else f"{outcome.reason[:100]}..."
    return f"{outcome.status}: {reason}" if reason else outcome.status


def _train(point: Point, log: Path) -> None:
    stopping = []
    with log.open("w", encoding="utf-8") as file:
        # A session of its own: a terminal's Ctrl-C comes here alone, once, and is passed on.
        process = subprocess.Popen(
            [*_PROGRAM, *point.words], stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )

        def pass_on(signum: int, frame: object) -> None:
            stopping.append(signum)
            process.send_signal(signal.SIGTERM)

        before = {signum: signal.signal(signum, pass_on) for signum in (signal.SIGINT, signal.SIGTERM)}
        try:
            process.wait()
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)
    if stopping:
        raise StoppedError("The sweep was stopped; the run has saved a checkpoint. The same command goes on.")


def write_array(points: Sequence[Point], folder: Path) -> Path:
    """Write a batch script that trains each run in a job of an array, through slurm/run.slurm; return it.

    The script has the runs' command lines, in the order of ``points``; the same array again goes on with what is not
    finished.
    """
    cases = "\n".join(f"{number}) set -- {shlex.join(point.words)} ;;" for number, point in enumerate(points))
    script = folder / ARRAY_SCRIPT
    folder.mkdir(parents=True, exist_ok=True)
    script.write_text(_ARRAY.format(last=len(points) - 1, cases=cases), encoding="utf-8")
    return script


_ARRAY = """#!/usr/bin/env bash
#SBATCH --job-name=sweep_lr
#SBATCH --array=0-{last}
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
# Written by scripts/sweep_lr.py --slurm. Submit it from the checkout: sbatch [-N NODES] THIS
set -euo pipefail
if [ ! -f "${{SLURM_SUBMIT_DIR:-}}/slurm/run.slurm" ]; then
    echo "error: It must be submitted from the checkout, which holds slurm/run.slurm; the folder is \\
${{SLURM_SUBMIT_DIR:-none}}. Go there." >&2
    exit 2
fi
cd "$SLURM_SUBMIT_DIR"
case "$SLURM_ARRAY_TASK_ID" in
{cases}
esac
export ARRAY_OF_RUNS=yes # each job is a run of its own, not the next part of one
exec bash slurm/run.slurm "$@"
"""
