# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Which gradients are not finite, and on which ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from nemo_sr.megatron.naming import place_parameters

_MOST_RANKS = 4


def find_nonfinite_gradients(chunks: Sequence[Any]) -> str:
    """Return a line that names, for each rank, a parameter whose gradient is not finite. Collective.

    A gradient that was summed over data-parallel ranks is found on the rank that holds the sum, one that was not on the
    rank that made it.

    Args:
        chunks: This rank's model, wrapped in Megatron-core's DistributedDataParallel.
    """
    found = [
        place.name
        for param, place in place_parameters(chunks).items()
        if (grad := getattr(param, "main_grad", param.grad)) is not None and not bool(grad.isfinite().all())
    ]
    everyones: list[list[str]] = [[] for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather_object(everyones, found)
    named = [
        f"rank {rank}: {names[0]}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
        for rank, names in enumerate(everyones)
        if names
    ]
    others = len(named) - _MOST_RANKS
    return "; ".join(named[:_MOST_RANKS]) + (f"; and on {others} more ranks" if others > 0 else "")
