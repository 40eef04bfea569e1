# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The blocks of a .bz2 file from any place in it, so that processes and machines can share one file.

bzip2 compresses blocks of at most 900,000 bytes, each by itself and behind a mark of 48 bits at any bit of the file. A
block given a stream of its own is decompressed, and its checksum checked, by the standard library; the program
bzip2recover does the same. Whether the file is one stream or many, as Wikipedia's multistream dumps are, makes no
difference.
"""

from __future__ import annotations

import bz2
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_BLOCK, _END = 0x314159265359, 0x177245385090  # the marks of a block and of the end of a stream
_MARK_BITS, _CRC_BITS = 48, 32
_READ = 1 << 20
_MAX_BLOCK_BITS = 8 * 1_300_000  # 900,000 bytes that do not compress take 0.92 MB


class DamagedError(ValueError):
    """Compressed data that end too early, or are not what they should be."""


def read_blocks(path: Path, start: int, stop: int) -> Iterator[tuple[bytes, bool]]:
    """Decompress the blocks whose marks begin in a range of a file, and those behind them for as long as wanted.

    Args:
        path: The .bz2 file.
        start: First byte of the range.
        stop: The byte behind its last.

    Yields:
        The data of a block, and whether its mark begins in the range.

    Raises:
        DamagedError: the data end too early, are damaged, or something else follows them.
    """
    with path.open("rb") as file:
        bits = _Bits(file, start)
        if start == 0 and not bits.is_header(0):
            raise DamagedError("it does not begin as bzip2 data do")
        # Chance bits in a block of the range before may look like a mark, once in 10**14 bits. The range before reads
        # on into this one, so a real block that is damaged does not pass unseen.
        is_certain = start == 0
        while (mark := bits.mark(0)) is not None:
            position, is_block = mark
            if not is_block:
                if is_certain and bits.check_end(position):
                    return
                bits.forget(1)
                continue
            number, data = 0, None
            while data is None and (end := bits.mark(number + 1)) and end[0] - position < _MAX_BLOCK_BITS:
                data = bits.decompress(position, end[0])
                number += 1
            if data is not None:
                is_certain = True
                yield data, position < 8 * stop
            elif is_certain:
                what = "they end too early" if end is None else "they are damaged"
                raise DamagedError(f"{what}: the block that begins at byte {position // 8} cannot be decompressed")
            bits.forget(max(1, number))
        if is_certain:
            raise DamagedError("they end too early: the end of the last stream is missing")


class _Bits:
    """A file's bits from a place on, of which no more is kept than needed."""

    def __init__(self, file: BinaryIO, start: int) -> None:
        file.seek(start)
        self._file = file
        self._data = b""
        self._base = start  # byte of the file at which the data begin
        self._marks: deque[tuple[int, bool]] = deque()
        self._last = -1  # the last mark found

    def mark(self, number: int) -> tuple[int, bool] | None:
        """Return where, in bits of the file, a mark to come begins, and whether it is a block's, or None."""
        while len(self._marks) <= number:
            more = self._file.read(_READ)
            if not more:
                return None
            seen = max(0, len(self._data) - _MARK_BITS // 8)
            self._data += more
            found = [(8 * self._base + bit, is_block) for bit, is_block in _find_marks(self._data, seen)]
            self._marks += [mark for mark in found if mark[0] > self._last]
            self._last = self._marks[-1][0] if self._marks else self._last
        return self._marks[number]

    def forget(self, count: int) -> None:
        """Drop marks, and the data before those that are left."""
        for _ in range(count):
            self._marks.popleft()
        keep = self._marks[0][0] // 8 if self._marks else self._base + max(0, len(self._data) - _MARK_BITS // 8)
        self._data, self._base = self._data[keep - self._base :], keep

    def is_header(self, position: int) -> bool:
        """Tell whether a stream begins at a byte of the file."""
        if self.mark(0) is None and position >= self._base + len(self._data):
            return False
        header = self._data[position - self._base :][:4]
        return header[:3] == b"BZh" and header[3:] in [b"%d" % level for level in range(1, 10)]

    def check_end(self, position: int) -> bool:
        """Check that another stream or nothing follows the end of one; return whether nothing does."""
        end = -(-(position + _MARK_BITS + _CRC_BITS) // 8)
        following = self.mark(1)
        size = self._base + len(self._data)
        if following is None and end >= size:
            if end > size:
                raise DamagedError("they end too early: the end of the last stream is cut off")
            return True
        if not self.is_header(end) or following is None or following[0] != 8 * (end + 4):
            raise DamagedError(f"at byte {end}, behind the end of a stream, there are no bzip2 data")
        return False

    def decompress(self, begin: int, end: int) -> bytes | None:
        """Decompress one block, given its bits; return None if they are not one whole block."""
        num_bits = end - begin
        if num_bits < _MARK_BITS + _CRC_BITS:
            return None
        data = self._data[begin // 8 - self._base : -(-end // 8) - self._base]
        block = (int.from_bytes(data, "big") >> (-end % 8)) & ((1 << num_bits) - 1)
        crc = (block >> (num_bits - _MARK_BITS - _CRC_BITS)) & 0xFFFFFFFF
        stream = ((block << _MARK_BITS) | _END) << _CRC_BITS | crc
        num_bits += _MARK_BITS + _CRC_BITS
        packed = (stream << (-num_bits % 8)).to_bytes(-(-num_bits // 8), "big")
        decompressor = bz2.BZ2Decompressor()
        try:
            result = decompressor.decompress(b"BZh9" + packed)
        except (OSError, ValueError):
            return None
        return result if decompressor.eof and not decompressor.unused_data else None


def _find_marks(data: bytes, start: int) -> list[tuple[int, bool]]:
    """Find the marks that begin behind a byte; return their first bits, in order, and whether each is a block's."""
    found = []
    for mark, is_block in ((_BLOCK, True), (_END, False)):
        for shift in range(8):
            # Five or six whole bytes to search for, and the bits of a mark in the bytes before and behind them.
            before = mark >> (40 + shift)
            inner = ((mark >> shift) & 0xFFFFFFFFFF).to_bytes(5, "big")
            behind = mark & ((1 << shift) - 1)
            at = data.find(inner, start + 1)
            while at > 0:
                first, last = data[at - 1], data[at + 5] if at + 5 < len(data) else -1
                matches = first & ((1 << (8 - shift)) - 1) == before
                if matches and (shift == 0 or (last >= 0 and last >> (8 - shift) == behind)):
                    found.append((8 * (at - 1) + shift, is_block))
                at = data.find(inner, at + 1)
    return sorted(found)
