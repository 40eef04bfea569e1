# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Jobs of slurm/run.slurm that train a very small GPT on two nodes, one rank each."""

import sys
from pathlib import Path

from local_cluster import LocalCluster
from toy import ROOT, environment

SCRIPT = ROOT / "slurm/run.slurm"


def variables() -> dict[str, str]:
    """Return the environment from which a job is submitted here."""
    names = ("PYTHONPATH", "OMP_NUM_THREADS")
    return {"VENV": sys.prefix, "CONTAINER": "none", **{name: environment()[name] for name in names}}


def submit(cluster: LocalCluster, log: Path, *words: str, options: tuple[str, ...] = ()) -> str:
    """Submit a training; return the job's number."""
    nodes = ("-N2", "--ntasks-per-node=1")
    return cluster.submit(*nodes, *options, str(SCRIPT), *words, cwd=ROOT, log=log, **variables())
