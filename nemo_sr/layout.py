# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Where a shard's elements lie in the whole parameter. Pure index arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from operator import index as whole_number

import torch
from torch import Tensor


@dataclass(frozen=True)
class ShardLayout:
    """A contiguous range of a rectangular block of a whole parameter.

    The shard is elements [start, stop) of the row-major flattening of the block at ``block_offset``. Tensor parallelism
    cuts the block out of the parameter, the distributed optimizer the range out of the block.

    Args:
        global_shape: Shape of the whole, unsharded parameter.
        block_offset: Index of the block's first element, one entry a dimension.
        block_shape: Shape of the block.
        start: First element of the shard in the flattened block.
        stop: One past the shard's last element in the flattened block.

    Raises:
        ValueError: the block does not lie in the parameter, or the range not in the block.
        TypeError: a size or an offset is not a whole number.

    Source:
        Noise specification, version 1.
    """

    global_shape: tuple[int, ...]
    block_offset: tuple[int, ...]
    block_shape: tuple[int, ...]
    start: int
    stop: int

    def __post_init__(self) -> None:
        for field in ("global_shape", "block_offset", "block_shape"):
            object.__setattr__(self, field, tuple(whole_number(size) for size in getattr(self, field)))
        for field in ("start", "stop"):
            object.__setattr__(self, field, whole_number(getattr(self, field)))
        whole, offset, block = self.global_shape, self.block_offset, self.block_shape
        if not len(whole) == len(offset) == len(block):
            raise ValueError(
                f"global_shape, block_offset and block_shape must have one length; got {whole}, {offset} and {block}. "
                "Give one entry a dimension."
            )
        if any(o < 0 or b < 0 or o + b > w for w, o, b in zip(whole, offset, block, strict=True)):
            raise ValueError(
                f"the block must lie in the parameter; got a block of shape {block} at {offset} in shape {whole}. "
                "Correct the offset or the block."
            )
        if not 0 <= self.start <= self.stop <= prod(block):
            raise ValueError(
                f"0 <= start <= stop <= {prod(block)} (the block's elements) must hold; "
                f"got start={self.start}, stop={self.stop}. Count within the block."
            )

    @classmethod
    def whole(cls, shape: Sequence[int]) -> ShardLayout:
        """Make the layout of an unsharded parameter of the given shape."""
        return cls(tuple(shape), (0,) * len(shape), tuple(shape), 0, prod(shape))

    @property
    def numel(self) -> int:
        """Number of elements in the shard."""
        return self.stop - self.start

    def index(self, begin: int = 0, end: int | None = None, *, device: torch.device | str = "cpu") -> Tensor:
        """Compute the row-major indices of the shard's elements in the whole parameter.

        Args:
            begin: First element, counted from the start of the shard.
            end: One past the last element; the shard's end by default.
            device: Where to make the result.

        Returns:
            Shape (end - begin,), int64.

        Raises:
            ValueError: [begin, end) does not lie in the shard.
        """
        end = self.numel if end is None else end
        if not 0 <= begin <= end <= self.numel:
            raise ValueError(
                f"0 <= begin <= end <= {self.numel} must hold; got begin={begin}, end={end}. Count within the shard."
            )
        if begin == end:
            return torch.empty(0, dtype=torch.int64, device=device)
        rest = torch.arange(self.start + begin, self.start + end, dtype=torch.int64, device=device)
        origin, ((_, outer_stride), *inner) = self.levels()
        result = torch.full_like(rest, origin)
        for size, stride in reversed(inner):
            quotient = rest // size
            result += (rest - quotient * size) * stride
            rest = quotient
        return result + rest * outer_stride

    def overlaps(self, other: ShardLayout) -> bool:
        """Tell whether two shards of one parameter share an element.

        Exact for shards of one block; shards of different blocks count as overlapping when their blocks do.
        """
        if self.numel == 0 or other.numel == 0:
            return False
        if (self.block_offset, self.block_shape) == (other.block_offset, other.block_shape):
            return self.start < other.stop and other.start < self.stop
        mine = zip(self.block_offset, self.block_shape, strict=True)
        theirs = zip(other.block_offset, other.block_shape, strict=True)
        return all(a < d + e and d < a + b for (a, b), (d, e) in zip(mine, theirs, strict=True))

    def levels(self) -> tuple[int, list[tuple[int, int]]]:
        """Describe the block as few nested levels: dimensions merge where the block spans the parameter.

        Returns:
            The index of the block's first element in the whole parameter, and (size, stride in the whole parameter) of
            each level, outermost first. The innermost has stride 1.
        """
        strides = [prod(self.global_shape[d + 1 :]) for d in range(len(self.global_shape))]
        levels = [(1, 1)]
        for size, whole, stride in zip(self.block_shape, self.global_shape, strides, strict=True):
            if size == whole or levels[-1][0] == 1:
                levels[-1] = (levels[-1][0] * size, stride)
            else:
                levels.append((size, stride))
        return sum(o * s for o, s in zip(self.block_offset, strides, strict=True)), levels
