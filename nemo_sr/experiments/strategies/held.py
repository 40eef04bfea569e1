# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What a training process really holds: bytes of weights, gradients, moments and masters."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def tensors_held(module: Any) -> dict[str, list[Tensor]]:
    """Return the tensors of each kind on this rank.

    Args:
        module: A GPTModule that has taken a step.

    Returns:
        Lists under "weights", "gradients", "moments" and "masters" (what is stepped and is no part of the weights).
    """
    weights = list(module.chunks.parameters())
    storages = {weight.untyped_storage().data_ptr() for weight in weights}
    inner = [link.optimizer for link in module._optimizer.megatron.chained_optimizers]
    stepped = [param for one in inner for group in one.param_groups for param in group["params"]]
    return {
        "weights": weights,
        "gradients": [weight.main_grad for weight in weights],
        "moments": [one.state[param][name] for one in inner for param in one.state for name in _MOMENTS],
        "masters": [param for param in stepped if param.untyped_storage().data_ptr() not in storages],
    }


_MOMENTS = ("exp_avg", "exp_avg_sq")


def bytes_held(module: Any) -> dict[str, int]:
    """Return the bytes of the memory behind each kind of tensor on this rank, see :func:`tensors_held`."""
    storages = {
        kind: {storage.data_ptr(): storage.nbytes() for storage in (tensor.untyped_storage() for tensor in tensors)}
        for kind, tensors in tensors_held(module).items()
    }
    return {kind: sum(sizes.values()) for kind, sizes in storages.items()}
