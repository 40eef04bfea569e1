# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""DTensor parameters (FSDP2, torch's tensor parallelism): the local shard, and where it lies in the whole."""

from __future__ import annotations

import sys
from collections.abc import Callable

from torch import Tensor

from nemo_sr.layout import ShardLayout


def is_dtensor(tensor: Tensor) -> bool:
    """Tell whether a tensor is a DTensor, without importing torch.distributed.tensor for those who do not use it."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local_tensor(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a DTensor, without a copy; any other tensor as it is. Call it under no_grad."""
    if not is_dtensor(tensor):
        return tensor
    local: Tensor = tensor.to_local()  # type: ignore[attr-defined]
    return local


def place_like(what: str, tensor: Tensor, param: Tensor) -> Tensor:
    """Give a tensor the mesh and placements of a parameter. Collective where they differ (a partial gradient, say).

    Args:
        what: Names the tensor, for the message.
        tensor: A DTensor if ``param`` is one, a plain tensor if it is not.
        param: The parameter.

    Raises:
        TypeError: one is a DTensor and the other is not.
    """
    if is_dtensor(tensor) != is_dtensor(param):
        kinds = ["a DTensor" if is_dtensor(t) else "a plain tensor" for t in (param, tensor)]
        raise TypeError(
            f"{what} must be of its parameter's kind; the parameter is {kinds[0]}, it is {kinds[1]}. Distribute it as "
            "the parameter (torch.distributed.checkpoint.state_dict does so for a full optimizer state)."
        )
    if not is_dtensor(param) or (tensor.device_mesh, tensor.placements) == (param.device_mesh, param.placements):  # type: ignore[attr-defined]
        return tensor
    placed: Tensor = tensor.redistribute(param.device_mesh, param.placements)  # type: ignore[attr-defined]
    return placed


def map_local(function: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
    """Apply an elementwise function to this rank's shard; a DTensor gives a DTensor placed alike."""
    if not is_dtensor(tensor):
        return function(tensor)
    from torch.distributed.tensor import DTensor

    mesh, placements = tensor.device_mesh, tensor.placements  # type: ignore[attr-defined]
    result: Tensor = DTensor.from_local(
        function(local_tensor(tensor)), mesh, placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )
    return result


def layout_of(name: str, param: Tensor) -> ShardLayout:
    """Return where this rank's elements of a parameter lie in the whole parameter.

    Args:
        name: Of the parameter, for the message.
        param: A plain tensor (which is then the whole parameter) or a DTensor.

    Raises:
        ValueError: a DTensor is partial on some mesh dimension, so that no rank holds its values.
    """
    if not is_dtensor(param):
        return ShardLayout.whole(param.shape)
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    placements = param.placements  # type: ignore[attr-defined]
    if any(placement.is_partial() for placement in placements):
        raise ValueError(
            f"a DTensor parameter must be sharded or replicated; {name!r} has placements {placements}. Redistribute it."
        )
    shape, offset = compute_local_shape_and_global_offset(param.shape, param.device_mesh, placements)  # type: ignore[attr-defined]
    local = local_tensor(param)
    if tuple(shape) != tuple(local.shape):
        raise ValueError(
            f"the shard of {name!r} should have shape {tuple(shape)} under placements {placements}; its local "
            f"tensor has {tuple(local.shape)}. Bind it with AdamWSR.bind."
        )
    # An empty shard's offset may point past the end of the parameter.
    inside = [min(o, whole - size) for o, size, whole in zip(offset, shape, param.shape, strict=True)]
    return ShardLayout(tuple(param.shape), tuple(inside), tuple(shape), 0, local.numel())
