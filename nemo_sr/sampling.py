# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""A sample of a model's weights for telemetry: a pure function of step, parameter and element, as the noise is.

Each whole parameter is cut into cells of neighbouring elements, and one element of each cell is drawn by Philox, anew
at every step. No generator is touched, a resumed run draws what the run before it would have drawn, and all ranks
together draw the same elements however they share the parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from nemo_sr.layout import ShardLayout
from nemo_sr.noise import philox4x32

SAMPLE_STREAM = 3
"""Philox's fourth counter word; the noise has 0, 1 and 2."""

_MASK32 = 0xFFFFFFFF


@dataclass(frozen=True)
class Draw:
    """Elements of several shards.

    Args:
        positions: In each shard, shard after shard. Shape (n,), int64. Outside the shard's part of a cell it is 0.
        counts: How many elements of the whole model each stands for; 0 where another rank has the one that was drawn.
            Shape (n,), int64.
        sizes: Positions of each shard.
    """

    positions: Tensor
    counts: Tensor
    sizes: list[int]

    def take(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return the drawn elements of one flat tensor for each shard. Shape (n,)."""
        pieces = zip(tensors, torch.split(self.positions, self.sizes), strict=True)
        return torch.cat([tensor.index_select(0, positions) for tensor, positions in pieces])


class ShardSampler:
    """Draws elements of a rank's shards, without a transfer between device and host.

    It keeps 16 bytes for each cell that has an element in a shard.

    Args:
        shards: Philox key of the parameter and layouts of the shard, as in :class:`nemo_sr.update.ParamShard`.
        num_cells: Cells of each whole parameter; one of fewer elements is taken whole.
        device: Where to draw.
    """

    def __init__(
        self, shards: Sequence[tuple[int, tuple[ShardLayout, ...]]], num_cells: int, device: torch.device | str
    ) -> None:
        num_dims = max((len(layout.global_shape) for _, layouts in shards for layout in layouts), default=0)
        rows: list[list[int]] = []
        cells: list[tuple[int, int, int]] = []
        self._sizes: list[int] = []
        for key, layouts in shards:
            base = size = 0
            for layout in layouts:
                if layout.numel:
                    row = _describe(key, layout, base, num_cells, num_dims)
                    first, last = (int(layout.index(at, at + 1)) // row[2] for at in (0, layout.numel - 1))
                    cells.append((len(rows), first, last + 1))
                    rows.append(row)
                    size += last + 1 - first
                base += layout.numel
            self._sizes.append(size)
        table = torch.tensor(rows, dtype=torch.int64, device=device).view(len(rows), 7 + 5 * num_dims)
        self._columns = table.t().contiguous()
        lengths = torch.tensor([stop - start for _, start, stop in cells], dtype=torch.int64, device=device)
        self._row_of = torch.repeat_interleave(torch.arange(len(rows), device=device), lengths)
        spans = [torch.arange(start, stop, device=device) for _, start, stop in cells]
        self._cells = torch.cat(spans) if spans else torch.empty(0, dtype=torch.int64, device=device)

    @property
    def sizes(self) -> list[int]:
        """Elements that are drawn of each shard."""
        return self._sizes

    def draw(self, step: int) -> Draw:
        """Draw the elements of a step; those of different steps are independent.

        Args:
            step: Optimizer step; taken modulo 2**32.
        """
        low, high, length, numel, base, start, stop, *dims = self._columns.index_select(1, self._row_of)
        counter = (
            self._cells & _MASK32,
            self._cells >> 32,
            torch.full_like(low, step & _MASK32),
            torch.full_like(low, SAMPLE_STREAM),
        )
        word = philox4x32(counter, (low, high))[0]
        begin = self._cells * length
        count = torch.minimum(length, numel - begin)
        element = begin + (word * count >> 32)
        position = torch.zeros_like(element)
        inside = torch.ones_like(element, dtype=torch.bool)
        for stride, size, offset, block, inner in zip(*(dims[i::5] for i in range(5)), strict=True):
            place = element // stride % size - offset
            inside &= (place >= 0) & (place < block)
            position += place * inner
        inside &= (position >= start) & (position < stop)
        positions = torch.where(inside, position - start + base, 0)
        return Draw(positions, torch.where(inside, count, 0), self._sizes)


def _describe(key: int, layout: ShardLayout, base: int, num_cells: int, num_dims: int) -> list[int]:
    """Return all that decides which element of a cell is drawn, and where a layout has it.

    Args:
        key: Philox key.
        layout: Where the elements lie in the whole.
        base: Where they begin in the shard.
        num_cells: Cells of the parameter.
        num_dims: Dimensions to describe it in.

    Returns:
        Key (two words), elements in a cell, elements in the parameter, base, start, stop, and for each dimension its
        stride and size in the whole, the block's offset and size, and its stride in the block.
    """
    numel = prod(layout.global_shape)
    length = -(-numel // num_cells)
    row = [key & _MASK32, key >> 32, length, numel, base, layout.start, layout.stop]
    for _ in range(num_dims - len(layout.global_shape)):
        row += [numel, 1, 0, 1, 0]
    for dim, (size, offset, block) in enumerate(
        zip(layout.global_shape, layout.block_offset, layout.block_shape, strict=True)
    ):
        row += [prod(layout.global_shape[dim + 1 :]), size, offset, block, prod(layout.block_shape[dim + 1 :])]
    return row
