# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Kills preprocessing runs at random moments and starts them again; they must end with the bytes of a run that was not.

Usage: python tests/data/kill_points.py [--points N] [--seed N]. It prints a line for every kill.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from nemo_sr.data.indexed import check_prefix
from nemo_sr.data.sample_corpus import write_sample_corpus

ROOT = Path(__file__).parents[2]
KILLS = ("kill -9 of all", "kill -9 of one worker", "kill -9 of the parent", "SIGTERM")
HEADER = "| kill | at | exit status | final files | finished items | same bytes |"


def start(dump: Path, folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(ROOT / "scripts/preprocess_wikipedia.py"), "--input", str(dump)]
    command += ["--output", str(folder / "x"), "--train-tokenizer", "1024", "--workers", "2"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    return subprocess.Popen(
        command, env=environment, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def kill(process: subprocess.Popen[bytes], kind: str, chance: random.Random) -> None:
    """Kill what `kind` says."""
    with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
        workers = psutil.Process(process.pid).children()
        if kind == "kill -9 of all":
            os.killpg(process.pid, signal.SIGKILL)
        elif kind == "kill -9 of one worker" and workers:
            chance.choice(workers).kill()
        else:
            process.send_signal(signal.SIGTERM if kind == "SIGTERM" else signal.SIGKILL)


def outputs(folder: Path) -> dict[str, bytes]:
    """Read the final files but the report, which holds times."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name != "report.json"}


def written(folder: Path) -> int:
    """Count the bytes that a run has written so far."""
    size = 0
    for path in [*folder.glob("*"), *folder.glob(".preprocess.partial/[!j]*")]:
        with contextlib.suppress(FileNotFoundError):
            size += path.stat().st_size if path.is_file() else 0
    return size


def count_items(folder: Path) -> int:
    """Count the items that the journal says are finished."""
    try:
        stages = json.loads((folder / ".preprocess.partial/journal.json").read_text())["stages"]
    except (FileNotFoundError, NotADirectoryError):
        return 0
    return sum(stage.get("items", 0) for stage in stages.values())


def run_points(num_points: int, seed: int, folder: Path) -> None:
    """Kill as many runs, each at a random moment.

    Raises:
        AssertionError: a file under a final name was not whole, or a run ended with other bytes.
    """
    chance = random.Random(seed)
    dump = folder / "dump.xml.bz2"
    write_sample_corpus(dump, megabytes=4)
    assert start(dump, folder / "whole").wait(600) == 0
    expected = outputs(folder / "whole")
    total = sum(map(len, expected.values()))
    print(HEADER + "\n|" + "---|" * 6, flush=True)
    for number in range(num_points):
        kind = KILLS[number % len(KILLS)]
        out = folder / str(number)
        process = start(dump, out)
        share = chance.uniform(0.0, 1.02)  # of what a run writes; above 1 it is publishing
        while process.poll() is None and written(out) < min(share * total, total):
            time.sleep(0.002)
        time.sleep(max(0.0, share - 1.0) + chance.uniform(0.0, 0.05))
        kill(process, kind, chance)
        status = process.wait(120)
        found = outputs(out) if out.exists() else {}
        assert all(expected[name] == data for name, data in found.items()), "a final file is not whole"
        if "x_text_document.idx" in found:
            check_prefix(out / "x_text_document")
        items = count_items(out)
        assert start(dump, out).wait(600) == 0
        same = outputs(out) == expected
        row = (kind, f"{share:.0%}", status, len(found), items, "yes" if same else "NO")
        print(f"| {' | '.join(map(str, row))} |", flush=True)
        assert same
        assert not (out / ".preprocess.partial").exists()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=20, help="kills in all (default: 20)")
    parser.add_argument("--seed", type=int, default=0, help="which moments (default: 0)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run_points(args.points, args.seed, Path(folder))
    print(f"{args.points} kills; every run ended with the bytes of the uninterrupted one.")


if __name__ == "__main__":
    main()
