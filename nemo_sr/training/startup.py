# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""How a run comes to its first step: what takes how long, said in a line, and imports without needless work."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
from collections.abc import Iterator, Mapping

BEGAN = "NEMO_SR_BEGAN"
"""Variable by which a launcher tells its ranks when the command was given, in seconds since 1970."""


class Timeline:
    """Seconds of each phase from the command to the first step.

    Args:
        began: When the first phase began, in seconds since 1970; None: now.
    """

    def __init__(self, began: float | None = None) -> None:
        self._last = time.time() if began is None else began
        self.seconds: dict[str, float] = {}

    @classmethod
    def of_process(cls, env: Mapping[str, str]) -> Timeline:
        """Return a timeline that begins with the command, of which this process may be one rank."""
        process_began = time.time() - _process_age()
        timeline = cls(float(env.get(BEGAN, process_began)))
        if BEGAN in env:
            timeline.end("launcher", process_began)
        return timeline

    @property
    def began(self) -> float:
        """When the first phase began, in seconds since 1970."""
        return self._last - sum(self.seconds.values())

    def end(self, phase: str, now: float | None = None) -> None:
        """Count the time since the last call to `phase`, which may have had some before."""
        now = time.time() if now is None else now
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._last
        self._last = now

    def __str__(self) -> str:
        """Return all phases in a line."""
        phases = ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in self.seconds.items())
        return f"Start-up: {phases}; {sum(self.seconds.values()):.1f} s in all."


def _process_age() -> float:
    """Return for how many seconds this process has been there, Python's own start included."""
    try:
        with open("/proc/self/stat", encoding="ascii") as stat, open("/proc/uptime", encoding="ascii") as uptime:
            ticks = int(stat.read().rpartition(")")[2].split()[19])  # field 22, counted from behind the name
            return float(uptime.read().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")
    except OSError:  # another system than Linux
        return 0.0


@contextlib.contextmanager
def uncollected_imports() -> Iterator[None]:
    """Import inside the ``with`` block without Python's garbage collector, which would take a quarter of the time.

    Where :func:`import_libraries` was called before, what is imported here is exempt from later collections too.
    """
    gc.disable()
    try:
        yield
    finally:
        if gc.get_freeze_count():
            gc.freeze()
        gc.enable()


def import_libraries() -> None:
    """Import what takes seconds and does not depend on the configuration, for a process that does nothing but train.

    All objects that are there afterwards are exempt from garbage collection: every full collection, and the one at the
    end of the process, would look through those of NeMo, Lightning and torch for a second or two.
    """
    with uncollected_imports():
        import nemo.core
        import nemo.utils.exp_manager  # noqa: F401
    gc.freeze()


def say_above_bar(line: str) -> None:
    """Print `line` at once, above the progress bar where there is one."""
    from tqdm import tqdm

    tqdm.write(line, file=sys.stdout)
    sys.stdout.flush()
