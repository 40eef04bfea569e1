# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Starts a script on real gloo ranks, and never leaves one behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from nemo_sr.training.launch import free_port

ROOT = Path(__file__).parents[2]


def run_ranks(script: Path, num_ranks: int, *args: str, directory: Path, timeout: float) -> None:
    """Run ``python script *args`` on `num_ranks` ranks, with the variables that ``torch.distributed`` reads.

    Args:
        script: The rank script.
        num_ranks: Number of processes.
        *args: The script's arguments.
        directory: Where the ranks' output goes (``rank0.txt`` ...).
        timeout: Seconds for the whole.

    Raises:
        AssertionError: a rank failed, or the time was over. All ranks and their children have been killed then.
    """
    port = free_port()
    ranks = []
    for rank in range(num_ranks):
        environment = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(num_ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore",
            "PYTHONFAULTHANDLER": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        with (directory / f"rank{rank}.txt").open("w") as output:
            ranks.append(
                subprocess.Popen(
                    [sys.executable, str(script), *args],
                    env=environment,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
    deadline = time.monotonic() + timeout
    try:
        while any(rank.poll() is None for rank in ranks) and not any(rank.poll() for rank in ranks):
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        codes = [rank.poll() for rank in ranks]
    finally:
        for rank in ranks:
            # The rank leads its process group, which outlives it where children do.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(rank.pid, signal.SIGKILL)
            rank.wait()
    if any(codes) or None in codes:
        output = "".join(
            f"\n--- rank {i} (exit status {code}) ---\n{(directory / f'rank{i}.txt').read_text()[-4000:]}"
            for i, code in enumerate(codes)
        )
        raise AssertionError(f"{script.name} {args} on {num_ranks} ranks, limit {timeout} s:{output}")
