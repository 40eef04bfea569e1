# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Checks that replicas of a model hold the same bits."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from nemo_sr.dtensor import local_tensor

_MULTIPLIER = 0x5851F42D4C957F2D  # odd, so that every position's weight is odd and no bit is lost modulo 2**64


@torch.no_grad()
def hash_tensor(tensor: Tensor) -> Tensor:
    """Hash a tensor's bits where they lie, without copying the tensor to the host.

    Args:
        tensor: Any shape; 1, 2, 4 or 8 bytes an element.

    Returns:
        Shape (), int64. Equal bits in equal order give equal hashes; one differing element always gives another.
    """
    signed = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    bits = tensor.detach().contiguous().view(-1).view(signed).to(torch.int64)
    position = torch.arange(bits.numel(), dtype=torch.int64, device=bits.device)
    weight = (position * _MULTIPLIER) ^ (position >> 7)
    return ((bits + 1) * (2 * weight + 1)).sum()


def check_replicas(named_params: Iterable[tuple[str, Tensor]], group: dist.ProcessGroup | None = None) -> None:
    """Check that every rank of a group holds the same bits. A collective call: every rank of the group makes it.

    Args:
        named_params: What ``model.named_parameters()`` gives, in one order on all ranks.
        group: The ranks that hold replicas; the default group if None.

    Raises:
        ValueError: there are no parameters.
        RuntimeError: parameters differ; the message names them and the ranks whose bits differ from the first rank's.
            Every rank raises it.
    """
    named_params = list(named_params)
    if not named_params:
        raise ValueError("check_replicas needs at least one parameter; got none. Pass model.named_parameters().")
    names, tensors = zip(*named_params, strict=True)
    hashes = torch.stack([hash_tensor(local_tensor(tensor)) for tensor in tensors])
    gathered = [torch.empty_like(hashes) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, hashes, group=group)
    table = torch.stack(gathered)
    differ = (table != table[0]).cpu()
    if not bool(differ.any()):
        return
    ranks = list(range(len(gathered))) if group is None else dist.get_process_group_ranks(group)
    drifted = [
        f"{name} (rank {', '.join(str(ranks[i]) for i in column.nonzero().flatten().tolist())})"
        for name, column in zip(names, differ.T, strict=True)
        if bool(column.any())
    ]
    raise RuntimeError(
        f"replicas must hold the same bits; {len(drifted)} of {len(names)} parameters differ from rank {ranks[0]}: "
        f"{', '.join(drifted[:10])}{', ...' if len(drifted) > 10 else ''}. Look for a seed, a gradient or a name that "
        "differs between the ranks, and restart from a checkpoint."
    )
