# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The tables that the Triton kernel reads: shards cut into pieces, and pieces into chunks. Index arithmetic alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from nemo_sr.layout import ShardLayout

CHUNK = 8192
"""Elements of a chunk: 8 bytes of table for 114 KiB of traffic."""

LONGEST_ROW = 1 << 30
"""Rows are counted in 32 bits, with room for a chunk; a longer row is one contiguous run."""


@dataclass(frozen=True)
class Rows:
    """A run of elements that lie in rows of one length and distance in the whole parameter.

    Args:
        numel: Number of elements.
        origin: Index in the whole parameter of the first row's first element.
        position: Position of the run's first element in that row.
        length: Elements of a row.
        distance: From a row's first element to the next row's. A contiguous run has distance == length.
    """

    numel: int
    origin: int
    position: int
    length: int = LONGEST_ROW
    distance: int = LONGEST_ROW


@dataclass(frozen=True)
class Piece:
    """A part of a shard that the kernel takes on one path.

    Args:
        shard: Number of the shard.
        begin: The part's first element in the shard.
        rows: Where its elements lie in the whole parameter.
        fast: Whether every access can be of 16 bytes and every eight elements are one group.
    """

    shard: int
    begin: int
    rows: Rows
    fast: bool


def rows_of(layout: ShardLayout) -> Iterator[Rows]:
    """Describe a shard's elements, in order, as runs in rows.

    A block of a matrix is one run; a block that is narrower than the parameter in more than one inner dimension is
    several.
    """
    base, dims = layout.levels()
    return _rows(dims, base, layout.start, layout.stop)


def _rows(dims: Sequence[tuple[int, int]], base: int, start: int, stop: int) -> Iterator[Rows]:
    if start == stop:
        return
    inner = prod(size for size, _ in dims[1:])
    first, last = start // inner, (stop - 1) // inner
    if len(dims) == 1 or (len(dims) == 2 and first == last):
        yield Rows(stop - start, base + first * dims[0][1] + start % inner if len(dims) == 2 else base + start, 0)
    elif len(dims) == 2 and inner <= LONGEST_ROW:
        origin = base + first * dims[0][1]
        yield Rows(stop - start, origin, start - first * inner, length=inner, distance=dims[0][1])
    else:
        for outer in range(first, last + 1):
            begin, end = max(start - outer * inner, 0), min(stop - outer * inner, inner)
            yield from _rows(dims[1:], base + outer * dims[0][1], begin, end)


def pieces_of(
    number: int, layouts: Sequence[ShardLayout], misalignments: Sequence[int], sizes: Sequence[int], *, rounds: bool
) -> Iterator[Piece]:
    """Cut a shard into pieces: as much as possible on the fast path, the edges and the rest on the exact one.

    Args:
        number: Of the shard.
        layouts: Its layouts; their concatenation is the shard.
        misalignments: Of each tensor's address, in bytes, modulo 16.
        sizes: Bytes of an element of each tensor.
        rounds: Whether there is any noise; without it, only the addresses matter.
    """
    if rounds:
        runs = [rows for layout in layouts for rows in rows_of(layout)]
    else:
        runs = [Rows(sum(layout.numel for layout in layouts), 0, 0)]
    begin = 0
    for rows in runs:
        contiguous = rows.length == rows.distance
        in_groups = contiguous or rows.origin % 8 == rows.length % 8 == rows.distance % 8 == 0
        # The fast path begins where a group does, or, without noise, where the weight's address allows it.
        head = -(rows.origin + rows.position) % 8 if rounds else -(misalignments[0] // sizes[0]) % 8
        aligned = all((m + (begin + head) * s) % 16 == 0 for m, s in zip(misalignments, sizes, strict=True))
        body = (rows.numel - head) // 8 * 8 if aligned and in_groups and rows.numel >= head else 0
        ends = (head, head + body, rows.numel) if body else (0, 0, rows.numel)
        for start, end, fast in zip((0, *ends[:2]), ends, (False, True, False), strict=True):
            if start < end:
                yield Piece(number, begin + start, _part(rows, start, end), fast)
        begin += rows.numel


def _part(rows: Rows, start: int, end: int) -> Rows:
    line, position = divmod(rows.position + start, rows.length)
    if rows.length == rows.distance:
        return Rows(end - start, rows.origin + rows.position + start, 0)
    return Rows(end - start, rows.origin + line * rows.distance, position, rows.length, rows.distance)


def chunk_table(pieces: Sequence[Piece]) -> Tensor:
    """Number the chunks of each piece. Shape (number of chunks, 2), int32: the piece, and the chunk within it."""
    counts = torch.tensor([-(-piece.rows.numel // CHUNK) for piece in pieces], dtype=torch.int64, device="cpu")
    owner = torch.repeat_interleave(torch.arange(len(pieces), device="cpu"), counts)
    within = torch.arange(len(owner), device="cpu") - (counts.cumsum(0) - counts)[owner]
    return torch.stack((owner, within), dim=1).to(torch.int32)


def piece_table(
    pieces: Sequence[Piece], keys: Sequence[int], addresses: Sequence[Sequence[int]], sizes: Sequence[int]
) -> Tensor:
    """Write a row for each piece, as the kernel's ``pieces`` asks. Shape (number of pieces, 12), int64."""
    rows = []
    for piece in pieces:
        places = [a + piece.begin * s for a, s in zip(addresses[piece.shard], sizes, strict=True)]
        key = keys[piece.shard]
        where = piece.rows
        rows.append(
            [
                *places,
                where.numel,
                key - (1 << 64) if key >> 63 else key,
                where.origin,
                where.position,
                where.length,
                where.distance,
                int(piece.fast),
                piece.shard,
            ]
        )
    return torch.tensor(rows, dtype=torch.int64, device="cpu").view(-1, 12)
