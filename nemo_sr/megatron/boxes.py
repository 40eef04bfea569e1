# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Describes a shard's optimizer state by where its elements lie in the whole parameter, for dist_checkpointing.

A data-parallel rank of the distributed optimizer holds a run of a flattened parameter. Megatron's own format that
loads in every layout gathers whole buffers to get back to parameters. But a run of a row-major flattening is a few
boxes of the parameter (part of a first row, whole rows, part of a last row), each of them contiguous in the shard, and
a checkpoint takes boxes. So every rank saves and loads its own elements in place, and nothing is gathered.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory

from nemo_sr.megatron.versions import is_since

Box = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class HeldState:
    """What a rank holds of one parameter's optimizer state."""

    param: torch.nn.Parameter
    """The model's parameter, by which the model's sharded_state_dict() is searched."""

    start: int
    """Where the state begins in the rank's flattened parameter."""

    tensors: Mapping[str, torch.Tensor]
    """The state by its name in the checkpoint ("exp_avg"), contiguous tensors of one size."""


def cut_into_boxes(shape: Sequence[int], start: int, stop: int) -> Iterator[Box]:
    """Cut a run of a row-major flattening into boxes, in the order of their elements.

    Args:
        shape: Shape of the whole.
        start: First element of the run.
        stop: Where the run ends.

    Yields:
        Offset and shape of each box; at most 2 * len(shape) - 1 of them.
    """
    if start >= stop:
        return
    if not shape:
        yield (), ()
        return
    row = math.prod(shape[1:])
    head, tail = -(-start // row), stop // row  # rows [head, tail) are whole
    if head > tail:
        yield from _in_row(shape, tail, start - tail * row, stop - tail * row)
        return
    if start < head * row:
        yield from _in_row(shape, head - 1, start - (head - 1) * row, row)
    if head < tail:
        yield (head, *(0 for _ in shape[1:])), (tail - head, *shape[1:])
    yield from _in_row(shape, tail, 0, stop - tail * row)


def _in_row(shape: Sequence[int], row: int, start: int, stop: int) -> Iterator[Box]:
    for offset, size in cut_into_boxes(shape[1:], start, stop):
        yield (row, *offset), (1, *size)


def describe_state(
    model_sharded_state_dict: dict[str, Any], held: Iterable[HeldState], *, replica: int | None
) -> dict[str, ShardedTensor]:
    """Describe optimizer state under the keys of Megatron's own formats, ``optimizer.state.<name>.<model's key>``.

    Args:
        model_sharded_state_dict: The model's sharded_state_dict().
        held: What this rank holds. The tensors themselves are described, so a load writes into them.
        replica: Which copy this is among data-parallel ranks, 0 being the one that is saved; None: as the model says.

    Returns:
        {label: ShardedTensor}; the labels mean something to :func:`copy_state_` alone.

    Raises:
        ValueError: a parameter is not in the model's state.
    """
    entries = {
        id(entry.data): entry
        for entry in nested_values(model_sharded_state_dict)
        if isinstance(entry, ShardedTensor | ShardedTensorFactory)
    }
    described = {}
    for number, state in enumerate(held):
        if id(state.param) not in entries:
            raise ValueError(
                f"every parameter of the optimizer must be in the model's sharded state dict; one of shape "
                f"{tuple(state.param.shape)} is not. Make the state dict with keep_vars=True (Megatron's modules do)."
            )
        pieces = _pieces(entries[id(state.param)])
        for name, tensor in state.tensors.items():
            for place, box in enumerate(_cut(pieces, state.start, tensor.detach(), f"optimizer.state.{name}", replica)):
                described[f"{name} {number} {place}"] = box
    return described


@torch.no_grad()
def copy_state_(held: Iterable[HeldState], loaded: Mapping[str, torch.Tensor]) -> None:
    """Copy what was loaded into the state; where it was loaded in place, this changes nothing.

    Args:
        held: What :func:`describe_state` described.
        loaded: What it returned, after dist_checkpointing.load.
    """
    for number, state in enumerate(held):
        for name, tensor in state.tensors.items():
            begin = place = 0
            while begin < tensor.numel():
                value = loaded[f"{name} {number} {place}"]
                tensor.view(-1)[begin : begin + value.numel()].copy_(value.reshape(-1))
                begin, place = begin + value.numel(), place + 1


def _pieces(entry: Any) -> list[ShardedTensor]:
    """Return the pieces that a rank's parameter is made of, in order: one, or two for SwiGLU's first matrix."""
    built = entry.build() if isinstance(entry, ShardedTensorFactory) else [entry]
    return list(nested_values(built))


def _cut(
    pieces: Sequence[ShardedTensor], start: int, tensor: torch.Tensor, prefix: str, replica: int | None
) -> Iterator[ShardedTensor]:
    flat = tensor.view(-1)
    begin = 0  # of the piece in the rank's flattened parameter
    done = 0  # elements of the tensor that have been described
    for piece in pieces:
        size = math.prod(piece.local_shape)
        first, last = max(start - begin, 0), min(start + flat.numel() - begin, size)
        for offset, shape in cut_into_boxes(piece.local_shape, first, last):
            prepended = piece.global_offset[: piece.prepend_axis_num]
            inner = piece.global_offset[piece.prepend_axis_num :]
            shape = (*(1 for _ in prepended), *shape)
            data = flat[done : done + math.prod(shape)].view(shape)
            done += data.numel()
            yield replace(
                piece,
                key=f"{prefix}.{piece.key}",
                data=data,
                dtype=data.dtype,
                local_shape=shape,
                global_offset=(*prepended, *(a + b for a, b in zip(inner, offset, strict=True))),
                # Newer lines take boxes of no regular grid, and then no box of the tensor may name one.
                axis_fragmentations=None if is_since("0.15") else piece.axis_fragmentations,
                prepend_axis_num=0,
                replica_id=piece.replica_id if replica is None else (*piece.replica_id[:2], replica),
            )
        begin += size
