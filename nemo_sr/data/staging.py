# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Output that appears complete or not at all, and what is finished of it kept for the next run."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

_FOLDER = ".preprocess.partial"
_PUBLISHING = "publishing"


class Staging:
    """A hidden folder beside the outputs, where they are made before they are published. A context manager.

    It is locked while in use, so that two runs cannot mix their outputs. Leaving the context removes it, and the output
    folder too if nothing was published in a new one; but what a run leaves that was killed, or failed for want of
    memory or space, stays for the next.

    Args:
        folder: Where the outputs will be; created if need be.
        names: File names of the outputs, in the order in which they are to appear.

    Attributes:
        path: The folder to write into.

    Raises:
        RuntimeError: the folder cannot be written, or another run is using it.
        ValueError: an output's name is taken by a folder.
    """

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.folder = folder
        self.names = list(names)
        self.path = folder / _FOLDER

    def __enter__(self) -> Staging:
        self._created = [folder for folder in (self.folder, *self.folder.parents) if not folder.exists()]
        try:
            self._lock = self._open_locked()
            taken = [name for name in self.names if (self.folder / name).is_dir()]
            if taken:
                raise ValueError(
                    f"an output must be a file; {self.folder / taken[0]} is a folder. Move it, or change --output."
                )
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is None or issubclass(kind, (ValueError, FileNotFoundError)):
            self._remove()
        else:
            os.close(self._lock)

    @property
    def is_publishing(self) -> bool:
        """Whether all outputs are made and a run was killed while it moved them to their places."""
        return (self.path / _PUBLISHING).exists()

    def publish(self) -> None:
        """Move the outputs to their places; if that fails, put back what was there before.

        The last name goes first when old outputs make way and comes last when new ones appear, so even a kill halfway
        leaves nothing that looks complete and is not; the next run moves the rest.
        """
        if self.is_publishing:
            for name in self.names:
                if (self.path / name).exists():
                    os.replace(self.path / name, self.folder / name)
            return
        previous = self.path / "previous"
        shutil.rmtree(previous, ignore_errors=True)
        previous.mkdir()
        for name in self.names:
            with (self.path / name).open("rb") as file:
                os.fsync(file.fileno())
        (self.path / _PUBLISHING).touch()
        _sync(self.path)
        retired: list[str] = []
        placed: list[str] = []
        try:
            for name in reversed(self.names):
                if (self.folder / name).exists():
                    os.replace(self.folder / name, previous / name)
                    retired.append(name)
            for name in self.names:
                os.replace(self.path / name, self.folder / name)
                placed.append(name)
            _sync(self.folder)
        except BaseException:
            for name in reversed(placed):
                (self.folder / name).unlink()
            for name in reversed(retired):
                os.replace(previous / name, self.folder / name)
            (self.path / _PUBLISHING).unlink()
            raise
        self._created = []

    def _open_locked(self) -> int:
        while True:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                lock = os.open(self.path, os.O_RDONLY)
            except OSError as error:
                raise RuntimeError(
                    f"the output folder must be writable; {self.folder} is not: {error.strerror}. Change --output."
                ) from error
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                os.close(lock)
                self._created = []
                raise RuntimeError(
                    f"one run at a time may write into {self.folder}; another is doing so. Wait for it, or choose "
                    "another folder with --output."
                ) from error
            except OSError as error:
                # Some cluster file systems are mounted without locks: go on as if alone.
                if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK):
                    raise
            # A run that ended just now may have removed the folder between our opening and our locking it.
            with contextlib.suppress(FileNotFoundError):
                if os.stat(self.path).st_ino == os.fstat(lock).st_ino:
                    return lock
            os.close(lock)

    def _remove(self) -> None:
        lock: int | None = getattr(self, "_lock", None)
        if lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(lock)
        for folder in self._created:
            with contextlib.suppress(OSError):
                folder.rmdir()


def _sync(folder: Path) -> None:
    """Have the names in a folder on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
