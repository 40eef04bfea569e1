# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""From what a report was made: commit, command, seeds, machine. No paths and no host names."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

import nemo_sr


@dataclass(frozen=True)
class Provenance:
    """What stands under every figure and page."""

    commit: str
    command: str
    seeds: str
    machine: str

    def __str__(self) -> str:
        return f"{self.command} | commit {self.commit} | seeds {self.seeds} | {self.machine}"


def provenance_of(name: str, *, quick: bool, seeds: Iterable[int]) -> Provenance:
    """Describe a run of an experiment."""
    return Provenance(
        commit=commit(),
        command=f"python -m nemo_sr.experiments {name}" + (" --quick" if quick else ""),
        seeds=ranges(seeds),
        machine=f"{processor()}, torch {torch.__version__}",
    )


@cache
def commit() -> str:
    """Return the commit of the checkout, with a plus if tracked files differ from it, or else the package's version."""
    here = Path(nemo_sr.__file__).parent
    try:
        head = _git(here, "rev-parse", "--short=12", "HEAD")
        tracked = _git(here, "ls-files", "__init__.py")
        changed = _git(here, "status", "--porcelain", "--untracked-files=no", "--", ".")
    except (OSError, subprocess.CalledProcessError):
        tracked = ""
    if not tracked:
        return f"none (nemo_sr {nemo_sr.__version__})"
    return head + ("+" if changed else "")


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@cache
def processor() -> str:
    """Return the processor's model, as the operating system names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def ranges(seeds: Iterable[int]) -> str:
    """Write integers in order, neighbours as a range: ``0-99, 200``."""
    spans: list[list[int]] = []
    for seed in sorted(set(seeds)):
        if spans and seed == spans[-1][1] + 1:
            spans[-1][1] = seed
        else:
            spans.append([seed, seed])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans) or "none"
