# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Counts the bytes of tensors that are alive, and the work of making them, on any device, meta included."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry


class LiveBytes(TorchDispatchMode):
    """Counts storages that operations make inside the ``with`` block, from their making to their end.

    What a kernel takes and gives back within one operation is not seen.

    Args:
        known: Tensors from before, which do not count.
    """

    def __init__(self, known: Iterable[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0
        """Bytes alive."""

        self.peak = 0
        """The most since :meth:`restart_peak`."""

        self.written = 0
        """Bytes of all storages so far."""

        self.num_operations = 0
        """Operations that made a storage, so far."""

        self.flops = 0
        """Floating-point operations of matrix products so far."""

        self.exchanged = 0
        """Bytes of the tensors of collectives so far, an all-reduce counted twice."""

        self._known = {tensor.untyped_storage()._cdata for tensor in known}

    def restart_peak(self) -> int:
        """Return the peak, and look for the next one from here."""
        peak, self.peak = self.peak, self.now
        return peak

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation and look at what it made."""
        result = func(*args, **(kwargs or {}))
        before = self.written
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage())
        self.num_operations += self.written > before
        if (count := flop_registry.get(func.overloadpacket)) is not None:  # type: ignore[attr-defined]
            self.flops += count(*args, **(kwargs or {}), out_val=result)
        if func.namespace == "c10d":  # type: ignore[attr-defined]
            sizes = [leaf.nbytes for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
            self.exchanged += max(sizes, default=0) * (2 if "allreduce" in str(func) else 1)
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        weakref.finalize(storage, self._release, key, size)
        self.now += size
        self.written += size
        self.peak = max(self.peak, self.now)

    def _release(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


class MetaAutocast(TorchFunctionMode):
    """torch.autocast for the meta device, which it does not know: matrix products take FP32 as BF16.

    Acts while ``torch.autocast("cpu")`` is on. Megatron-core's linear layers cast without a cache, as here.
    """

    _PRODUCTS = frozenset(
        {torch.matmul, torch.Tensor.matmul, torch.bmm, torch.baddbmm, torch.mm, torch.addmm, torch.nn.functional.linear}
    )

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call `func`, in BF16 where autocast would."""
        if func in self._PRODUCTS and torch.is_autocast_enabled("cpu"):
            args = tuple(
                arg.bfloat16() if isinstance(arg, torch.Tensor) and arg.dtype == torch.float32 else arg for arg in args
            )
        return func(*args, **(kwargs or {}))
