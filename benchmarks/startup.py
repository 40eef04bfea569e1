# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Where the time and the memory of a start-up go, as Markdown tables.

    python benchmarks/startup.py [--runs N] [key=value ...]

Runs scripts/pretrain_gpt.py for one step, N times, and takes the phases from the line that it prints; then imports what
a rank imports, once with Python's -X importtime, and adds up what each package takes by itself. Under -X importtime an
import takes about twice as long: its shares are what counts.
"""

import argparse
import collections
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAM = Path(__file__).resolve().parents[1] / "scripts" / "pretrain_gpt.py"
STEP = ["trainer.stop_after_steps=1", "trainer.log_every_n_steps=1"]
MEMORY = """
import resource, sys
for name in sys.argv[1:]:
    __import__(name)
    print(name, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""
RANK = """
from nemo_sr.training.startup import import_libraries
import_libraries()
from nemo_sr.megatron import cpu_platform
with cpu_platform():
    import nemo_sr.training.module, nemo_sr.training.checkpoint, nemo_sr.training.datamodule, nemo_sr.planning.forecast
"""


def start(words):
    """Run one step; return the seconds of each phase and of the whole, and the peak memory as it is printed."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(PROGRAM), *STEP, f"exp_manager.explicit_log_dir={folder}/run", *words]
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        took = time.monotonic() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    line = re.search(r"Start-up: (.*); (\S+) s in all\.", done.stdout)
    phases = {name: float(seconds) for name, seconds in re.findall(r"([a-z ]+) (\d+\.\d) s", line[1])}
    phases = {name.strip(): seconds for name, seconds in phases.items()}
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    peak = re.search(r"peak memory +(.*)", done.stdout)[1]
    whole = {"to the end of the first step": float(line[2]), "to the end of the command": took}
    return {**phases, **whole, "processor time of all processes": used}, peak


def own_seconds():
    """Return what each package's modules took by themselves, in seconds under -X importtime."""
    done = subprocess.run([sys.executable, "-X", "importtime", "-c", RANK], capture_output=True, text=True, check=True)
    found = collections.Counter()
    for microseconds, name in re.findall(r"^import time: +(\d+) \| +\d+ \| +(\S+)$", done.stderr, re.MULTILINE):
        parts = name.split(".")
        package = ".".join(parts[:2]) if parts[0] in ("torch", "megatron", "nemo") else parts[0]
        found[package] += int(microseconds) / 1e6
    return found


def main(runs, words):
    """Print the tables."""
    starts = [start(words) for _ in range(runs)]
    print(f"| phase, {runs} start(s) | median | least | most |")
    print("|---|---|---|---|")
    for name in starts[0][0]:
        seconds = [phases[name] for phases, _ in starts]
        print(f"| {name} | {statistics.median(seconds):.1f} s | {min(seconds):.1f} s | {max(seconds):.1f} s |")
    print(f"\nPeak memory: {starts[-1][1]}.\n")
    seconds = own_seconds()
    print("| import | share |")
    print("|---|---|")
    for package, own in seconds.most_common(14):
        print(f"| {package} | {own / seconds.total():.0%} |")
    names = ["hydra", "torch", "megatron.core", "lightning.pytorch", "nemo.core", "nemo.utils.exp_manager"]
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", MEMORY, *names], capture_output=True, text=True)
    print("\n| after importing | resident |")
    print("|---|---|")
    for name, mebibytes in re.findall(r"^(\S+) (\d+)$", done.stdout, re.MULTILINE):
        print(f"| {name} | {mebibytes} MiB |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="starts (%(default)s)")
    args, rest = parser.parse_known_args()
    main(args.runs, rest)
