# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Megatron-core on a CPU, over gloo.

Megatron-core names CUDA in its code even where plain tensors would do. :func:`cpu_platform` puts a stand-in at each of
these places and takes it away again. The whole list, each with the code that needs it (megatron-core 0.16.1):

=================================  ====================================================================================
stand-in                           needed by
=================================  ====================================================================================
torch.cuda.is_available            a GPU that is present but not used: whoever asks would turn to it, torch.cuda.stream
                                   for one. Always ``False``
torch.cuda.current_device          ``device=torch.cuda.current_device()`` in tensor_parallel, pipeline_parallel,
                                   distributed, dist_checkpointing, and the attention. Returns ``device("cpu")``
torch.cuda.synchronize             p2p_communication, timers, dist_checkpointing: nothing is asynchronous here
torch.cuda.Stream, default_stream  the DDP with several instances of the distributed optimizer: one queue, in order.
(from 0.17 on: current_stream)     From 0.19 on the DDP asks for the stream in any case
torch.cuda.get_rng_state,          tensor_parallel.random: torch's CPU generator serves as the device's
manual_seed
random._get_cuda_rng_state,        tensor_parallel.random reaches below torch.cuda for these two (recomputation, RNG
random._set_cuda_rng_state         tracker)
torch.Tensor.cuda                  tensor_parallel.data, the tied embedding of pipeline stages: the tensor itself
torch.Tensor.type                  DistributedOptimizer compares it with "torch.cuda.BFloat16Tensor". Only calls that
                                   come from megatron.core are answered so; everybody else gets the truth
device="cuda" in torch calls       MixedPrecisionOptimizer, clip_grads, schedules, exchange_utils, transformer.utils.
                                   A torch function mode rewrites it; it acts in the thread that entered
autograd._engine_run_backward      recomputation: torch.autograd.backward switches function modes off, and the forward
                                   code that runs inside makes its masks on "cuda". Switches ours on again
torch.autocast                     ``torch.autocast("cuda")`` in the pipeline schedules, which is off without a GPU: O1
                                   mixed precision would silently be FP32. "cuda" means "cpu" there
forward and backward of the        custom_fwd and custom_bwd, which tensor_parallel.layers binds to "cuda" when it is
autograd functions in layers.py    imported: the backward pass would leave autocast. Bound to "cpu"
moe_utils.te_general_gemm          the router of mixtures of experts: without Transformer Engine 0.16 never defines the
                                   name, with it the function needs a GPU. ``None``: the router takes torch.mm
=================================  ====================================================================================

Does not run here: the alltoall dispatcher of mixtures of experts (use allgather). benchmarks/cpu_platform.py measures
what the stand-ins cost.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from nemo_sr.megatron.versions import is_since

_lock = threading.Lock()
_owner: int | None = None
_depth = 0


class _CpuStream:
    """Takes the place of torch.cuda.Stream: the one queue that a CPU has."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def wait_stream(self, stream: Any) -> None:
        """Do nothing."""


class _CudaMeansCpu(TorchFunctionMode):
    """Rewrites ``device="cuda"`` to ``device="cpu"`` in torch calls."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call `func`, on the CPU where it was asked to run on a GPU."""
        if not kwargs:
            return func(*args)
        device = kwargs.get("device")
        if device is not None and not isinstance(device, int) and torch.device(device).type == "cuda":
            kwargs = {**kwargs, "device": "cpu"}
        return func(*args, **kwargs)


def _cuda_stand_ins() -> dict[str, Any]:
    # Every name has a function object of its own: torch._dynamo refuses one object under two names.
    def current_device() -> torch.device:
        return torch.device("cpu")

    def synchronize(device: Any = None) -> None:
        return None

    def get_rng_state(device: Any = "cuda") -> torch.Tensor:
        return torch.get_rng_state()

    def manual_seed(seed: int) -> None:
        torch.manual_seed(seed)

    return {
        "is_available": lambda: False,
        "current_device": current_device,
        "synchronize": synchronize,
        "Stream": _CpuStream,
        "current_stream" if is_since("0.17") else "default_stream": lambda device=None: _CpuStream(),
        "get_rng_state": get_rng_state,
        "manual_seed": manual_seed,
    }


def _tensor_stand_ins() -> dict[str, Any]:
    true_type = torch.Tensor.type

    def cuda(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self

    def type_(self: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dtype is not None:
            return true_type(self, dtype, *args, **kwargs)
        name = true_type(self)
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller.startswith("megatron.core.") and not name.startswith("torch.cuda."):
            return name.replace("torch.", "torch.cuda.", 1)
        return name

    return {"cuda": cuda, "type": type_}


class _CpuAutocast(torch.autocast):
    """Takes the place of torch.autocast: what is for a GPU is for the CPU."""

    def __init__(self, device_type: str, *args: Any, **kwargs: Any) -> None:
        super().__init__("cpu" if device_type == "cuda" else device_type, *args, **kwargs)


def _bound_to_cpu(function: Any) -> dict[str, Any]:
    bindings: dict[str, Any] = {"forward": torch.amp.custom_fwd, "backward": torch.amp.custom_bwd}
    return {
        # Under the decorator of Megatron's choice is the function itself.
        name: staticmethod(bind(getattr(function, name).__wrapped__, device_type="cpu"))
        for name, bind in bindings.items()
    }


def _random_stand_ins() -> dict[str, Any]:
    def get_cuda_rng_state(device: Any = "cuda", clone: bool = False, graph_safe: bool = False) -> torch.Tensor:
        return torch.get_rng_state()

    def set_cuda_rng_state(new_state: torch.Tensor, device: Any = -1, graph_safe: bool = False) -> None:
        torch.set_rng_state(new_state)

    return {"_get_cuda_rng_state": get_cuda_rng_state, "_set_cuda_rng_state": set_cuda_rng_state}


def replace(stack: contextlib.ExitStack, owner: Any, stand_ins: dict[str, Any]) -> None:
    """Set attributes of a module or class until `stack` is left.

    Args:
        stack: Where to register what undoes it.
        owner: The module or class.
        stand_ins: Its new attributes by name.
    """
    for name, stand_in in stand_ins.items():
        if name in vars(owner):
            stack.callback(setattr, owner, name, vars(owner)[name])
        else:
            # inherited (torch.Tensor.type comes from a C base class): leaving removes the name again
            stack.callback(delattr, owner, name)
        setattr(owner, name, stand_in)


def act_in_backward(stack: contextlib.ExitStack, make_mode: Callable[[], TorchFunctionMode]) -> None:
    """Have a function mode act in backward passes too, until `stack` is left.

    Args:
        stack: Where to register what undoes it.
        make_mode: Returns the mode.
    """
    run_engine = torch.autograd._engine_run_backward  # type: ignore[attr-defined]

    def run_with_mode(*args: Any, **kwargs: Any) -> Any:
        with make_mode():
            return run_engine(*args, **kwargs)

    replace(stack, torch.autograd, {"_engine_run_backward": run_with_mode})


@contextlib.contextmanager
def cpu_platform() -> Iterator[None]:
    """Run Megatron-core on the CPU inside the ``with`` block, with gloo process groups.

    Megatron may have been imported before or not. The block may be entered again inside itself, by the same thread;
    the stand-ins go with the outermost one, after an exception too. The module's docstring lists them.

    Raises:
        RuntimeError: CUDA has been initialised in this process, or another thread is inside.
    """
    global _owner, _depth
    with _lock:
        if _owner not in (None, threading.get_ident()):
            raise RuntimeError(
                "cpu_platform() needs the process for one thread; another thread is inside it. "
                "Enter it once, in the thread that trains."
            )
        if _depth == 0 and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            raise RuntimeError(
                "cpu_platform() needs a process in which CUDA has not been initialised; in this one it has. "
                "Enter it before anything touches the GPU, or hide the GPUs (CUDA_VISIBLE_DEVICES='')."
            )
        _owner = threading.get_ident()
        _depth += 1
    try:
        with contextlib.ExitStack() as stack:
            if _depth == 1:
                # Imported first: what Megatron binds at import time is then torch's own.
                from megatron.core.tensor_parallel import layers
                from megatron.core.tensor_parallel import random as mcore_random
                from megatron.core.transformer.moe import moe_utils

                replace(stack, torch.cuda, _cuda_stand_ins())
                replace(stack, torch.Tensor, _tensor_stand_ins())
                replace(stack, torch, {"autocast": _CpuAutocast})
                replace(stack, mcore_random, _random_stand_ins())
                for function in (layers.LinearWithFrozenWeight, layers.LinearWithGradAccumulationAndAsyncCommunication):
                    replace(stack, function, _bound_to_cpu(function))
                replace(stack, moe_utils, {"te_general_gemm": None})
                act_in_backward(stack, _CudaMeansCpu)
                stack.enter_context(_CudaMeansCpu())
            yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                _owner = None
