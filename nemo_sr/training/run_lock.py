# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""One writer for a run's folder, and a person's wish to stop it: files that slurm/run.slurm shares with the trainer.

The batch script writes the lock, since it alone can ask SLURM whether another job is alive. The lock holds the job's
number and how often SLURM has restarted it. A start that SLURM has replaced by another (a node that was lost may go on
for a while) must not write any more, so the trainer looks at the lock before each checkpoint.
"""

from __future__ import annotations

import os
from pathlib import Path

OWNER_VARIABLE = "NEMO_SR_RUN_LOCK"


def lock_file(run_folder: Path) -> Path:
    """Return the lock of a run."""
    return run_folder / "jobs" / "lock"


def stop_file(run_folder: Path) -> Path:
    """Return the file that ends a run with a checkpoint when a person makes it."""
    return run_folder / "stop"


def find_other_writer(run_folder: Path) -> str | None:
    """Return who has the run's lock if this process has not, else None."""
    mine = os.environ.get(OWNER_VARIABLE, "")
    try:
        owner = lock_file(run_folder).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        owner = ""
    if owner == mine:
        return None
    return _describe(owner) if owner else "nobody any more"


def _describe(owner: str) -> str:
    job, _, start = owner.partition(".")
    return f"job {job} (start {start})"
