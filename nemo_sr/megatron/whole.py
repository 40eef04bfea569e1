# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Whole parameters' optimizer state, for Megatron-core 0.14: its checkpoints take parts of regular grids only.

A data-parallel rank's run of a parameter is no such part. So the ranks of a data-parallel group put their runs together
and each describes the whole, of which one copy is saved. The checkpoint is that of the newer lines; what it costs is
room for the moments of all parameters that a data-parallel group has, on each of its ranks, while it saves or loads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from nemo_sr.megatron.boxes import HeldState, copy_state_


@torch.no_grad()
def make_whole(params: Sequence[torch.nn.Parameter], names: Sequence[str]) -> list[HeldState]:
    """Return room for the whole state of parameters, of zeros.

    Args:
        params: Parameters, in an order that all ranks have.
        names: The names of the state's tensors, which have the parameters' types.
    """

    def room(param: torch.nn.Parameter) -> torch.Tensor:
        return torch.zeros(param.numel(), dtype=param.dtype, device=param.device)

    return [HeldState(param, 0, {name: room(param) for name in names}) for param in params]


@torch.no_grad()
def gather_whole_(whole: Iterable[HeldState], held: Iterable[HeldState], group: Any) -> None:
    """Fill in the whole state from what each rank of a group holds. Collective.

    Args:
        whole: What :func:`make_whole` returned; every element is held by one rank of the group, or by none.
        held: What this rank holds.
        group: The data-parallel group.
    """
    mine = {id(state.param): state for state in held}
    for state in whole:
        for name, tensor in state.tensors.items():
            if id(state.param) in mine:
                part = _part(tensor, mine[id(state.param)], name)
                part.copy_(mine[id(state.param)].tensors[name].view(-1))
            # As bytes, so that a sum with zeros changes none: -0.0 + 0.0 is 0.0.
            torch.distributed.all_reduce(tensor.view(torch.uint8), group=group)


@torch.no_grad()
def copy_whole_(whole: Sequence[HeldState], held: Iterable[HeldState], loaded: Mapping[str, torch.Tensor]) -> None:
    """Copy what this rank holds out of the whole state that was loaded.

    Args:
        whole: What :func:`make_whole` returned.
        held: What this rank holds.
        loaded: What boxes.describe_state returned for the whole, after dist_checkpointing.load.
    """
    copy_state_(whole, loaded)
    found = {id(state.param): state for state in whole}
    for state in held:
        for name, tensor in state.tensors.items():
            tensor.view(-1).copy_(_part(found[id(state.param)].tensors[name], state, name))


def _part(whole: torch.Tensor, held: HeldState, name: str) -> torch.Tensor:
    return whole[held.start : held.start + held.tensors[name].numel()]
