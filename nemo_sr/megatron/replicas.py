# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Checks that all ranks of a Megatron model that hold the same elements hold the same bits."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
import torch.distributed as dist

from nemo_sr.megatron.naming import place_parameters
from nemo_sr.replicas import ReplicaError, describe_drift, hash_tensors


class ModelReplicas:
    """The replicas in a Megatron model: over data-parallel ranks, of what tensor-parallel ranks share, tied embeddings.

    They are found by what they are, as the noise is: two ranks hold replicas where they hold the same elements of a
    parameter of one canonical name. Making one is a collective call of all ranks.

    Args:
        model_chunks: What get_megatron_optimizer gets.
    """

    def __init__(self, model_chunks: Sequence[torch.nn.Module]) -> None:
        places = place_parameters(model_chunks)
        self._params = list(places)
        self._names = [place.name for place in places.values()]
        keys = [_key(place) for place in places.values()]
        sizes = [0] * dist.get_world_size()
        dist.all_gather_object(sizes, len(keys))
        self._width = max(sizes)
        table = self._gather(torch.tensor(keys, dtype=torch.int64, device=self._params[0].device))
        # Which key every entry of the table has; what fills a shorter rank's row up has none.
        held = torch.arange(self._width).repeat(len(sizes), 1) < torch.tensor(sizes).unsqueeze(1)
        self._ranks, self._columns = held.nonzero(as_tuple=True)
        _, self._numbers = torch.unique(table[held], return_inverse=True)

    def check(self) -> None:
        """Compare the weights. A collective call of all ranks, between steps, when the weights have been gathered.

        It reads every weight once and sends 8 bytes a parameter and rank.

        Raises:
            ReplicaError: weights differ; the message names the parameters and the ranks. Every rank raises it.
        """
        table = self._gather(hash_tensors(self._params))
        hashes = table[self._ranks, self._columns]
        num_keys = int(self._numbers.max()) + 1
        extremes = [
            torch.zeros(num_keys, dtype=torch.int64).scatter_reduce(0, self._numbers, hashes, how, include_self=False)
            for how in ("amin", "amax")
        ]
        drifted = (extremes[0] != extremes[1]).nonzero().flatten().tolist()
        if drifted:
            raise ReplicaError(self._describe(drifted, hashes, num_keys))

    def _gather(self, mine: torch.Tensor) -> torch.Tensor:
        padded = torch.cat([mine, mine.new_zeros(self._width - len(mine))])
        rows = [torch.empty_like(padded) for _ in range(dist.get_world_size())]
        dist.all_gather(rows, padded)
        return torch.stack(rows).cpu()

    def _describe(self, drifted: list[int], hashes: torch.Tensor, num_keys: int) -> str:
        names: list[list[str]] = [[] for _ in range(dist.get_world_size())]
        dist.all_gather_object(names, self._names)
        found = []
        for key in drifted:
            entries = (self._numbers == key).nonzero().flatten()
            ranks, columns = self._ranks[entries].tolist(), self._columns[entries].tolist()
            found.append((names[ranks[0]][columns[0]], ranks, hashes[entries].tolist()))
        return describe_drift(found, num_keys)


def _key(place: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(place).encode(), digest_size=8).digest(), "little", signed=True)
