# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Trains runs one after another in one process, through pretrain_gpt.py's own ``train``: NeMo's import takes longer.

Usage: python -m nemo_sr.experiments.strategies.worker JOBS.json SECONDS

JOBS.json is a list of {"folder", "key", "words"}. Several workers may have the same list: each takes the next run that
no other has. None begins after SECONDS.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

OUTCOME = "outcome.json"
"""In a run's folder once it is finished: its key, its command line, and what was measured."""


def main(jobs_file: str, seconds: str) -> None:
    """Train every run of the list that is not finished and that no other worker has."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before torch initialises CUDA
    end = time.monotonic() + float(seconds)
    for job in json.loads(Path(jobs_file).read_text(encoding="utf-8")):
        if time.monotonic() > end:
            break
        folder = Path(job["folder"])
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _claim(folder.with_name(f"{folder.name}.lock")) as mine:
            if mine and not is_finished(folder, job["key"]):
                _train(folder, job["key"], job["words"])


def is_finished(folder: Path, key: str) -> bool:
    """Tell whether a folder holds the finished run with this key."""
    file = folder / OUTCOME
    return file.is_file() and json.loads(file.read_text(encoding="utf-8"))["key"] == key


@contextlib.contextmanager
def _claim(file: Path) -> Iterator[bool]:
    """Hold a run until the end of this process at the latest; yield whether nobody else does."""
    with file.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _train(folder: Path, key: str, words: list[str]) -> None:
    from nemo_sr.experiments.frame.provenance import commit
    from nemo_sr.experiments.strategies.measuring import MeasuringCallback
    from nemo_sr.training.config import compose_config
    from nemo_sr.training.launch import Launch, free_port
    from nemo_sr.training.pretrain import train
    from nemo_sr.training.skipping import DivergedError
    from nemo_sr.training.validate import check_config

    shutil.rmtree(folder, ignore_errors=True)  # of an unfinished start, or of another key
    places = {"exp_manager.explicit_log_dir": folder, "data.index_mapping_dir": folder / "index"}
    config = compose_config([*words, *(f"{name}={json.dumps(str(path))}" for name, path in places.items())])
    check_config(config)
    os.environ["MASTER_PORT"] = str(free_port())
    measured, diverged = MeasuringCallback(), ""
    start = time.perf_counter()
    try:
        train(config, Launch("none", 0, 1, 1), callbacks=[measured])
    except DivergedError as error:
        diverged = str(error)
    if not diverged and measured.step < config.trainer.max_steps:
        sys.exit(f"error: stopped at step {measured.step} of {config.trainer.max_steps}; the same command goes on.")
    gc.collect()  # what a run leaves keeps its process groups, whose threads poll
    outcome: dict[str, Any] = {
        "key": key,
        "words": words,
        "commit": commit(),
        "diverged": diverged,
        "seconds": round(time.perf_counter() - start, 1),
        "bytes": measured.bytes,
        "num_parameters": measured.num_parameters,
        "step_seconds": measured.step_seconds,
    }
    for name in ("checkpoints", "index"):
        shutil.rmtree(folder / name, ignore_errors=True)
    fresh = folder / f"{OUTCOME}.new"
    fresh.write_text(json.dumps(outcome, indent=1), encoding="utf-8")
    fresh.replace(folder / OUTCOME)


if __name__ == "__main__":
    main(*sys.argv[1:])
