# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What a training process really holds: types of weights, gradients, moments and masters, and of matrix products."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")


def types_held(pl_module):
    """Return the types of each kind of tensor on this rank, as sorted texts."""
    weights = list(pl_module.chunks.parameters())
    storages = {weight.untyped_storage().data_ptr() for weight in weights}
    inner = [link.optimizer for link in pl_module._optimizer.megatron.chained_optimizers]
    stepped = [param for one in inner for group in one.param_groups for param in group["params"]]
    moments = [one.state[param][name] for one in inner for param in one.state for name in ("exp_avg", "exp_avg_sq")]
    held = {
        "weights": weights,
        "gradients": [weight.main_grad for weight in weights],
        "moments": moments,
        # What is stepped and is no part of the weights.
        "masters": [param for param in stepped if param.untyped_storage().data_ptr() not in storages],
    }
    return {kind: sorted({str(tensor.dtype) for tensor in tensors}) for kind, tensors in held.items()}


class ProductTypes(TorchDispatchMode):
    """Writes down the types that matrix products take and give, in forward and backward."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run the function and look at it."""
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in PRODUCTS:
            self.seen |= {str(value.dtype) for value in (*args, result) if isinstance(value, torch.Tensor)}
        return result
