# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Inputs cut into items that worker processes read by themselves.

A plain or .bz2 file is cut into segments, ranges of its bytes that a worker, or another machine, can enter without
reading what is before. A .gz file or a stream can only be read from its beginning: it is cut into pieces, which hold
their data. Where an item ends does not depend on the number of workers. A record (a page, a line) belongs to the
segment in which it begins, so a segment's data come with what follows it in the file.
"""

from __future__ import annotations

import bz2
import gzip
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path
from typing import Any

from nemo_sr.data.bzip2 import DamagedError, read_blocks

STDIN = Path("-")
MAX_RECORD = 8 << 20
"""Bytes of the largest record that is read; MediaWiki itself saves no page of more than 2 MiB."""

_READ = 1 << 20
_PIECE = 4 << 20
HEAD = 1 << 16
"""Bytes that are kept of a larger record, to name it."""

_SEGMENT_SIZES = {".bz2": (1 << 18, 1 << 21), "": (1 << 20, 1 << 23)}  # smallest and largest, in bytes of the file
_MAX_EXPANDED = 1 << 27  # bytes of one segment, which a worker may have to hold
_OPENERS: dict[str, Callable[[Any], Any]] = {".bz2": bz2.open, ".gz": gzip.open}
_ENDINGS = (".xml", ".jsonl", ".json", ".bz2", ".gz")
_MAGICS = {b"BZh": ".bz2", b"\x1f\x8b": ".gz"}


class SourceError(ValueError):
    """An input cannot be read: it is missing, damaged or not what its name says."""


@dataclass(frozen=True)
class Segment:
    """A range of a file that can be entered anywhere.

    Attributes:
        path: The file.
        packed: Whether it is compressed by bzip2.
        start: First byte.
        stop: The byte behind the last.
    """

    path: Path
    packed: bool
    start: int
    stop: int

    @property
    def num_bytes(self) -> int:
        """Bytes of the input that it stands for."""
        return self.stop - self.start

    @property
    def begins_record(self) -> bool:
        """Whether it begins where a record does: where the file does."""
        return self.start == 0

    @property
    def is_last(self) -> bool:
        """Whether the data that come with it go on to the end of the input."""
        return True

    @property
    def is_cut(self) -> bool:
        """Whether they are the beginning of a record above ``MAX_RECORD``."""
        return False

    def chunks(self) -> Iterator[tuple[bytes, bool]]:
        """Yield its data and those behind it for as long as wanted, with whether they are its own."""
        with reading(self.path):
            if self.packed:
                expanded = 0
                for data, is_own in read_blocks(self.path, self.start, self.stop):
                    expanded += len(data)
                    if expanded > _MAX_EXPANDED:
                        raise DamagedError(
                            f"{self.num_bytes} bytes from byte {self.start} on expand to more than "
                            f"{_MAX_EXPANDED >> 20} MiB, which no text does"
                        )
                    yield data, is_own
                return
            with self.path.open("rb") as file:
                file.seek(self.start)
                for at in range(self.start, self.stop, _READ):
                    yield file.read(min(_READ, self.stop - at)), True
                while data := file.read(_READ):
                    yield data, False


@dataclass(frozen=True)
class Piece:
    """Data read from a stream, ending where a record does.

    Attributes:
        path: Where they come from.
        data: The data; of a record above ``MAX_RECORD`` only the beginning.
        num_bytes: Bytes of the input that it stands for.
        is_last: Whether the stream ends with it.
        is_cut: Whether they are the beginning of a record above ``MAX_RECORD``.
    """

    path: Path
    data: bytes
    num_bytes: int
    is_last: bool
    is_cut: bool

    @property
    def begins_record(self) -> bool:
        """Whether it begins where a record does."""
        return True

    def chunks(self) -> Iterator[tuple[bytes, bool]]:
        """Yield the data."""
        yield self.data, True


Item = Segment | Piece


class Source:
    """One input.

    Args:
        path: A file, whose ending says how it is compressed, or ``STDIN`` or a pipe, whose first bytes do.

    Attributes:
        path: As given.
        size: Bytes of the file, or None of a stream.

    Raises:
        SourceError: it is not there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._buffer = b""  # what has been read of a stream to look at its beginning
        if path != STDIN and (not path.exists() or path.is_dir()):
            what = "a folder" if path.is_dir() else "not there"
            raise SourceError(f"the input must be an existing file; {path} is {what}. Check --input.")
        self.size = path.stat().st_size if path.is_file() else None
        if self.size is not None:
            if path.suffix not in _ENDINGS:
                raise SourceError(
                    f"the input must end in {', '.join(_ENDINGS[:-1])} or {_ENDINGS[-1]}, compressed or not; got "
                    f"{path}. Unpack it, or give it the ending of its format."
                )
            self._packing = path.suffix if path.suffix in _OPENERS else ""
        else:
            raw: Any = sys.stdin.buffer if path == STDIN else path.open("rb")
            first = raw.peek(3)
            self._packing = next((ending for magic, ending in _MAGICS.items() if first.startswith(magic)), "")
            self._stream = self._open(raw)

    @property
    def is_seekable(self) -> bool:
        """Whether it is cut into segments."""
        return self.size is not None and self._packing != ".gz"

    def head(self, until: bytes) -> bytes:
        """Return the data before the first occurrence of ``until``, or the first MiB if it is not in them."""
        with reading(self.path):
            if self.size is None:
                while until not in self._buffer and len(self._buffer) < _READ and (data := self._stream.read(_READ)):
                    self._buffer += data
                return self._buffer.partition(until)[0]
            with self.path.open("rb") as raw, self._open(raw) as file:
                head: bytes = file.read(_READ)
                return head.partition(until)[0]

    def items(self, boundary: bytes, first: int = 0, last: int | None = None) -> Iterator[Item]:
        """Cut the source into items.

        Args:
            boundary: What every record begins with, or a newline, with which it ends.
            first: First byte to be used; a .gz file or stream is used whole by whoever has its first byte.
            last: The byte behind its last one; by default all is used.
        """
        if not self.is_seekable:
            if first == 0:
                yield from self._pieces(boundary)
            return
        assert self.size is not None
        smallest, largest = _SEGMENT_SIZES[self._packing]
        step = min(max(self.size // 64, smallest), largest)
        for start in range(0, max(1, self.size), step):
            if first <= start < (max(1, self.size) if last is None else last):
                yield Segment(self.path, self._packing == ".bz2", start, min(start + step, self.size))

    def _open(self, raw: Any) -> Any:
        return _OPENERS[self._packing](raw) if self._packing else raw

    def _pieces(self, boundary: bytes) -> Iterator[Piece]:
        with reading(self.path):
            if self.size is None:
                yield from self._cut(self._stream, None, boundary)
                return
            with self.path.open("rb") as raw, self._open(raw) as file:
                yield from self._cut(file, raw, boundary)

    def _cut(self, file: Any, raw: Any, boundary: bytes) -> Iterator[Piece]:
        buffer, head, done = self._buffer, b"", 0
        behind = len(boundary) if boundary == b"\n" else 0
        overlap = len(boundary) - 1

        def piece(data: bytes, is_last: bool) -> Piece:
            nonlocal done, head
            num_bytes = (raw.tell() if raw is not None else done + len(data)) - done
            done += num_bytes
            result = Piece(self.path, head or data, num_bytes, is_last, is_cut=bool(head))
            head = b""
            return result

        while data := file.read(_READ):
            buffer += data
            if head:  # of a record that is too large only the end is of interest
                if (at := buffer.find(boundary)) < 0:
                    buffer = buffer[len(buffer) - overlap :]
                    continue
                cut, buffer = buffer[: at + behind], buffer[at + behind :]
                yield piece(cut, False)
            if len(buffer) < _PIECE:
                continue
            if (at := buffer.rfind(boundary, 1)) > 0:
                cut, buffer = buffer[: at + behind], buffer[at + behind :]
                yield piece(cut, False)
            elif len(buffer) > MAX_RECORD:
                head, buffer = buffer[:HEAD], buffer[len(buffer) - overlap :]
        yield piece(buffer, True)


def expand(patterns: Sequence[str]) -> list[Path]:
    """Turn paths and glob patterns into paths, those of a pattern in natural order (part2 before part10).

    Raises:
        SourceError: a pattern matches nothing, a path is given twice, or standard input with others.
    """
    paths: list[Path] = []
    for pattern in patterns:
        if has_magic(pattern) and not Path(pattern).exists():
            found = sorted(map(Path, glob(pattern)), key=_natural_order)
            if not found:
                raise SourceError(f"a pattern must match a file; {pattern} matches none. Check --input.")
            paths += found
        else:
            paths.append(Path(pattern))
    twice = [path for number, path in enumerate(paths) if path in paths[:number]]
    if twice:
        raise SourceError(f"an input must be given once; {twice[0]} is there twice. Leave one out.")
    if STDIN in paths and len(paths) > 1:
        raise SourceError("standard input, -, must be the only input; there are others. Leave it, or them, out.")
    return paths


def _natural_order(path: Path) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", str(path))]


def cut_sources(sources: Sequence[Source], boundary: bytes, shard: tuple[int, int] = (0, 1)) -> Iterator[Item]:
    """Cut sources into the items of one of several shares, equal in bytes; together the shares are all items, in order.

    Args:
        sources: The sources, in order.
        boundary: As for ``Source.items``.
        shard: Number of the share, from 0, and of shares.
    """
    number, count = shard
    total = sum(source.size or 0 for source in sources)
    low, high = total * number // count, total * (number + 1) // count
    before = 0
    for source in sources:
        size = source.size or 0
        if count == 1:
            yield from source.items(boundary)
        elif source.is_seekable:
            yield from source.items(boundary, low - before, min(high - before, size))
        elif low <= before < high:
            yield from source.items(boundary)
        before += size


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what damaged data raise in the libraries below into a SourceError."""
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error, DamagedError) as error:
        raise damaged(path, "its compressed data ends too early or is damaged", error) from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise damaged(path, f"its data is not what the ending {path.suffix} promises", error) from error


def damaged(path: Path, what: str, detail: object) -> SourceError:
    """Make the error of an input that cannot be read."""
    return SourceError(
        f"the input must be a complete file; {path} cannot be read: {what} ({' '.join(str(detail).split())[:160]}). "
        "Download it again and compare its checksum with the one published beside it."
    )
