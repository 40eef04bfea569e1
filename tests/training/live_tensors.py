# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What a training process really holds: types of weights, gradients, moments and masters, types of products.

Also the most memory that is given out meanwhile.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nemo_sr.experiments.strategies.held import tensors_held

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")


def types_held(pl_module):
    """Return the types of each kind of tensor on this rank, as sorted texts."""
    held = tensors_held(pl_module)
    return {kind: sorted({str(tensor.dtype) for tensor in tensors}) for kind, tensors in held.items()}


class AllocatedPeak:
    """The most memory that torch's CPU allocator gave out within a ``with`` block, beyond what was out before.

    Every allocation counts, those inside operations as well: torch's profiler writes them down.
    """

    def __enter__(self):
        activities = [torch.profiler.ProfilerActivity.CPU]
        self._profile = torch.profiler.profile(activities=activities, profile_memory=True)
        self._profile.__enter__()
        return self

    def __exit__(self, *error):
        self._profile.__exit__(*error)
        events = [event for event in self._profile.profiler.kineto_results.events() if event.name() == "[memory]"]
        now = self.bytes = 0
        for event in sorted(events, key=lambda event: event.start_ns()):
            now += event.nbytes()
            self.bytes = max(self.bytes, now)


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
