# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Checks that replicas of a model hold the same bits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from nemo_sr.dtensor import local_tensor

# Words of 8 bytes that are hashed at a time: 8 MiB, and twice as much beside them.
_PIECE = 1 << 20


class ReplicaError(RuntimeError):
    """Replicas differ; the message names the parameters and the ranks."""


@torch.no_grad()
def hash_tensors(tensors: Sequence[Tensor]) -> Tensor:
    """Hash tensors' bits where they lie.

    Args:
        tensors: Of one device, contiguous (others are copied) and of any shape and type. At least one.

    Returns:
        Shape (len(tensors),), int64. Equal bits in equal order give equal hashes, wherever they are stored; tensors
        that differ in one aligned word of 8 bytes have different ones, others all but once in 2**32 or so.
    """
    flats = [tensor.detach().contiguous().view(-1) for tensor in tensors]
    longest = max(flat.numel() * flat.element_size() for flat in flats)
    weights = _odd_weights(torch.arange(min(_PIECE, longest // 8 + 1), device=flats[0].device))
    hashes = torch.zeros(len(flats), dtype=torch.int64, device=flats[0].device)
    for number, flat in enumerate(flats):
        pieces = torch.split(flat, _PIECE * 8 // flat.element_size())
        # Other numbers than the words': the same ones would be products of the same two for two places.
        factors = _odd_weights(torch.arange(len(pieces), device=flat.device) ^ 0x2545F4914F6CDD1D)
        for piece, factor in zip(pieces, factors, strict=True):
            words = _as_words(piece)
            # The upper half is folded into the lower: a product carries a difference upwards alone, and flipped signs
            # of two words would cancel.
            folded = (words >> 32).bitwise_and_(0xFFFFFFFF).bitwise_xor_(words)
            hashes[number] += folded.mul_(weights[: words.numel()]).sum() * factor
    return hashes


def _odd_weights(position: Tensor) -> Tensor:
    # Odd, so that no bit of a difference is lost modulo 2**64.
    return 2 * ((position * 0x5851F42D4C957F2D) ^ (position >> 7)) + 1


def _as_words(piece: Tensor) -> Tensor:
    missing = -piece.numel() * piece.element_size() % 8 // piece.element_size()
    if missing:
        piece = torch.cat([piece, piece.new_zeros(missing)])
    elif piece.storage_offset() * piece.element_size() % 8:
        piece = piece.clone()
    return piece.view(torch.int64)


def check_replicas(named_params: Iterable[tuple[str, Tensor]], group: dist.ProcessGroup | None = None) -> None:
    """Check that every rank of a group holds the same bits. A collective call: every rank of the group makes it.

    Args:
        named_params: What ``model.named_parameters()`` gives, in one order on all ranks.
        group: The ranks that hold replicas; the default group if None.

    Raises:
        ValueError: there are no parameters.
        ReplicaError: parameters differ; the message names them and the ranks whose bits differ from most. Every rank
            raises it.
    """
    named_params = list(named_params)
    if not named_params:
        raise ValueError("check_replicas needs at least one parameter; got none. Pass model.named_parameters().")
    names, tensors = zip(*named_params, strict=True)
    hashes = hash_tensors([local_tensor(tensor) for tensor in tensors])
    gathered = [torch.empty_like(hashes) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, hashes, group=group)
    table = torch.stack(gathered).cpu()
    differ = (table != table[0]).any(dim=0).nonzero().flatten().tolist()
    if not differ:
        return
    ranks = list(range(len(gathered))) if group is None else dist.get_process_group_ranks(group)
    raise ReplicaError(describe_drift([(names[i], ranks, table[:, i].tolist()) for i in differ], len(names)))


def describe_drift(drifted: Sequence[tuple[str, Sequence[int], Sequence[int]]], num_weights: int) -> str:
    """Say which replicas differ.

    Args:
        drifted: Name, ranks that hold the weight, and its hash on each of them.
        num_weights: Number of weights that were compared.
    """
    lines = []
    for name, ranks, hashes in drifted[:10]:
        usual = max(hashes, key=lambda value: (hashes.count(value), -hashes.index(value)))
        odd = [rank for rank, value in zip(ranks, hashes, strict=True) if value != usual]
        others = [rank for rank, value in zip(ranks, hashes, strict=True) if value == usual]
        lines.append(f"{name} (rank {_listed(odd)} from rank {_listed(others)})")
    return (
        f"Replicas must hold the same bits; {len(drifted)} of {num_weights} weights differ: "
        f"{', '.join(lines)}{', ...' if len(drifted) > 10 else ''}. Look for a seed, a gradient or a name that differs "
        "between the ranks, or for faulty memory, and go on from a checkpoint."
    )


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(str(rank) for rank in ranks[:8]) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
