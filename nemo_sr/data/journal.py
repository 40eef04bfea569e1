# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What of a run is finished, kept on disk, so that after a kill the next run goes on from there."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

_NAME = "journal.json"
_SECONDS_BETWEEN_ENTRIES = 1.0
MAX_LISTED = 1000
"""Skipped records that are named in the report; all are counted."""


class Journal:
    """Entries about the stages of a run, in the folder where its files are made.

    Args:
        folder: The folder. What is in it is removed unless its journal is of a run with the same source.
        source: What determines the outputs, or None if a later run could not know it to be the same.
    """

    def __init__(self, folder: Path, source: Mapping[str, Any] | None) -> None:
        self._path = folder / _NAME
        try:
            self._content = json.loads(self._path.read_text(encoding="utf-8"))
            is_same = source is not None and self._content["source"] == source
        except (OSError, ValueError, KeyError, TypeError):
            is_same = False
        if not is_same:
            for entry in list(folder.iterdir()):
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            self._content = {"source": source, "stages": {}}

    def __getitem__(self, stage: str) -> dict[str, Any]:
        """Return the entry of a stage, empty if there is none."""
        entry: dict[str, Any] = self._content["stages"].get(stage, {})
        return entry

    def __setitem__(self, stage: str, entry: dict[str, Any]) -> None:
        """Write the entry of a stage, so that it is either on disk or the one before is."""
        self._content["stages"][stage] = entry
        new = self._path.with_suffix(".new")
        with new.open("w", encoding="utf-8") as file:
            json.dump(self._content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self._path)


class Stage:
    """Files that grow item by item, cut back to the last entry of the journal when they are opened. A context manager.

    Args:
        journal: Where it is noted how far they are.
        name: Of the stage.
        paths: The files.

    Attributes:
        files: The files, opened for appending.
        num_items: Items that are in them.
        is_done: Whether there are no more.
        counts: Sums over the items.
        skipped: What was left out and why, the first ``MAX_LISTED`` of them.
    """

    def __init__(self, journal: Journal, name: str, paths: Sequence[Path]) -> None:
        self._journal, self._name, self._paths = journal, name, list(paths)
        entry = journal[name]
        sizes = entry.get("sizes", [0] * len(self._paths))
        if not all(
            path.exists() and path.stat().st_size >= size for path, size in zip(self._paths, sizes, strict=True)
        ):
            entry, sizes = {}, [0] * len(self._paths)
        self._sizes = sizes
        self.num_items: int = entry.get("items", 0)
        self.is_done: bool = entry.get("done", False)
        self.counts: Counter[str] = Counter(entry.get("counts", {}))
        self.skipped: list[dict[str, Any]] = entry.get("skipped", [])
        self.files: list[BinaryIO] = []

    def __enter__(self) -> Stage:
        for path, size in zip(self._paths, self._sizes, strict=True):
            file = path.open("ab")
            file.truncate(size)
            self.files.append(file)
        self._noted = time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if kind is None:
                self.is_done = True
                self._note()
        finally:
            for file in self.files:
                file.close()

    def add(self, parts: Sequence[bytes], counts: Mapping[str, int], skipped: Sequence[dict[str, Any]]) -> None:
        """Append an item's part of each file, and note it once in a while."""
        for file, part in zip(self.files, parts, strict=True):
            file.write(part)
        self.num_items += 1
        self.counts.update(counts)
        self.skipped += skipped[: MAX_LISTED - len(self.skipped)]
        if time.monotonic() - self._noted >= _SECONDS_BETWEEN_ENTRIES:
            self._note()

    def _note(self) -> None:
        for file in self.files:
            file.flush()
            os.fsync(file.fileno())
        self._journal[self._name] = {
            "items": self.num_items,
            "sizes": [os.fstat(file.fileno()).st_size for file in self.files],
            "done": self.is_done,
            "counts": dict(self.counts),
            "skipped": self.skipped,
        }
        self._noted = time.monotonic()
