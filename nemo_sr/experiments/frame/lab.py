# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Where an experiment computes: parts that are kept, and the choice between the quick and the full form."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from nemo_sr.experiments.frame.provenance import processor
from nemo_sr.experiments.frame.sources import code_version

T = TypeVar("T")


@dataclass(frozen=True)
class PartTime:
    """What a part took, when it was computed."""

    name: str
    settings: str
    seconds: float
    stored: bool
    """Whether an earlier run computed it."""


class Lab:
    """Handed to an experiment's ``run``.

    Args:
        folder: Of this experiment's report.
        quick: Whether the quick form is asked for.
        sources: See :class:`nemo_sr.experiments.Experiment`.
        say: Told of each part.
    """

    def __init__(
        self,
        folder: Path,
        *,
        quick: bool,
        sources: tuple[str, ...] = (),
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.quick = quick
        self.seeds: set[int] = set()
        self.times: list[PartTime] = []
        self._parts = folder / "parts"
        self._sources = sources
        self._say = say
        self.folder = folder / "work"
        """A scratch folder for what parts run; made when first asked for by a part."""

    def choose(self, *, quick: T, full: T) -> T:
        """Return what the asked form takes."""
        return quick if self.quick else full

    def part(self, function: Callable[..., Any], **settings: Any) -> Any:
        """Return ``function(**settings)``, computed or kept from an earlier run.

        Args:
            function: Of the top level of a module; returns what JSON holds.
            **settings: What JSON holds.

        Returns:
            What JSON makes of the function's result: tuples become lists, keys strings.

        Raises:
            TypeError: JSON does not hold a setting or the result.
        """
        for name in ("seed", "seeds"):
            given = settings.get(name, [])
            self.seeds.update([given] if isinstance(given, int) else given)
        described = json.dumps(settings, sort_keys=True)
        version = code_version(function.__module__, self._sources)
        name = function.__name__
        identity = [function.__module__, name, described, version, torch.__version__, processor()]
        file = self._parts / f"{name}-{hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]}.json"
        stored = file.exists()
        if stored:
            content = json.loads(file.read_text(encoding="utf-8"))
        else:
            start = time.perf_counter()
            with _one_thread():
                result = function(**settings)
            seconds = round(time.perf_counter() - start, 3)
            content = {"function": name, "settings": settings, "code": version, "seconds": seconds, "result": result}
            text = json.dumps(content)
            self._parts.mkdir(parents=True, exist_ok=True)
            fresh = file.with_suffix(f".{os.getpid()}.tmp")
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(file)
            content = json.loads(text)
        self._say(f"  {name} {_shorten(described)}: " + ("kept" if stored else f"{content['seconds']:.1f} s"))
        self.times.append(PartTime(name, described, content["seconds"], stored))
        return content["result"]

    def write_times(self, file: Path) -> None:
        """Write what the parts took as CSV; not comparable to the bit."""
        with file.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(["part", "settings", "seconds"])
            writer.writerows([time.name, time.settings, time.seconds] for time in self.times)


def _shorten(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:97]}..."


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
