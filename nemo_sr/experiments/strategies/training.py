# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Trains what is missing of a list of runs, in some processes side by side."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_sr.experiments.frame.sources import ROOT
from nemo_sr.experiments.strategies.corpora import digest_of
from nemo_sr.experiments.strategies.sweep import key_of
from nemo_sr.experiments.strategies.worker import is_finished


@dataclass(frozen=True)
class Job:
    """A run to be trained.

    Args:
        folder: Where.
        words: The command line of pretrain_gpt.py, without the folder.
        data: Its data prefix.
    """

    folder: Path
    words: tuple[str, ...]
    data: Path


MINUTES = "NEMO_SR_LAB_MINUTES"
"""Environment variable: no training begins later than this after the start of the command."""

_BEGAN = time.monotonic()


def seconds_left(minutes: float) -> float:
    """Return how long trainings may still begin, by :data:`MINUTES`, or `minutes` where it is not set."""
    return float(os.environ.get(MINUTES, minutes)) * 60 - (time.monotonic() - _BEGAN)


def train_missing(jobs: Sequence[Job], *, workers: int, scratch: Path, minutes: float) -> list[Path]:
    """Train the runs that are not finished; those that are stay as they are.

    Those that the time does not suffice for (:func:`seconds_left`) are left out.

    Args:
        jobs: The runs, in the order in which to begin them.
        workers: Processes, one thread each.
        scratch: Folder for the list of runs and the logs.
        minutes: After the start of the command, in which trainings begin.

    Returns:
        The folders of those that are finished.

    Raises:
        RuntimeError: a process failed; with the end of its log.
        ConfigError: a command line cannot run.
    """
    from nemo_sr.training.config import compose_config

    digests = {data: digest_of(data) for data in {job.data for job in jobs}}
    listed, keys = [], {}
    for job in jobs:
        words = [*job.words, f"data.data_prefix={json.dumps(str(job.data))}"]
        keys[job.folder] = key = key_of(compose_config(words), digests[job.data])
        if not is_finished(job.folder, key):
            listed.append({"folder": str(job.folder), "key": key, "words": words})
    if listed and (left := seconds_left(minutes)) > 0:
        _train(listed, left, workers=workers, scratch=scratch)
    return [folder for folder, key in keys.items() if is_finished(folder, key)]


def _train(listed: Sequence[dict[str, Any]], left: float, *, workers: int, scratch: Path) -> None:
    scratch.mkdir(parents=True, exist_ok=True)
    jobs_file = scratch / f"jobs_{os.getpid()}.json"
    jobs_file.write_text(json.dumps(listed), encoding="utf-8")
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", "nemo_sr.experiments.strategies.worker", str(jobs_file), str(left)]
    before = signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))  # through the finally below
    processes = []
    try:
        for number in range(min(workers, len(listed))):
            with (scratch / f"worker_{os.getpid()}_{number}.log").open("w") as log:
                processes.append(
                    subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, text=True)
                )
        for number, process in enumerate(processes):
            if process.wait():
                log_file = scratch / f"worker_{os.getpid()}_{number}.log"
                end = "\n".join(log_file.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
                raise RuntimeError(
                    f"The process that trains must end with status 0; it ended with {process.returncode}. The end of "
                    f"{log_file}:\n{end}"
                )
    finally:
        signal.signal(signal.SIGTERM, before)
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
