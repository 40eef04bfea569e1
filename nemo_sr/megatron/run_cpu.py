# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Megatron-LM's training programs on a CPU: what they need beyond :mod:`nemo_sr.megatron.cpu_platform`.

Its loop, ``megatron.training``, asks for a GPU where Megatron-core does not. ``python -m nemo_sr.megatron.run --cpu``
puts these stand-ins there, and nothing else does. The whole list, with the code that needs each (core_v0.16.1):

=================================  ====================================================================================
stand-in                           needed by
=================================  ====================================================================================
torch.cuda.is_available,           initialize_megatron stops without a GPU, and leaves process groups and seeds out.
device_count                       ``True`` and 1 for callers in megatron.training; everybody else gets the truth
torch.cuda.set_device              _initialize_distributed
torch.cuda.get_device_properties   validate_args, for the GPU's generation: before the tenth it insists on
                                   CUDA_DEVICE_MAX_CONNECTIONS=1
torch.cuda.current_stream, stream  get_model builds the model's DDP in a stream of its own
torch.cuda.set_rng_state           load_checkpoint: torch's CPU generator serves as the device's
torch.utils.data.DataLoader        draws a seed for its workers from the CPU's generator, which here is the device's
                                   too: after a resume dropout would go on from another state. It is put back
fused_kernels.load                 _compile_dependencies asks nvcc for its version
compile_helpers                    _compile_dependencies runs make in the checkout. Left out where an installed
                                   megatron-core has the compiled functions, which are then used
TORCHDYNAMO_DISABLE=1              small fused functions, which torch.compile would spend minutes on
=================================  ====================================================================================
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.data import DataLoader

from nemo_sr.megatron.cpu_platform import cpu_platform, replace

_LOOP = "megatron.training."


@contextlib.contextmanager
def megatron_lm_on_cpu() -> Iterator[None]:
    """Run a training program of Megatron-LM on the CPU inside the ``with`` block; :func:`cpu_platform` included.

    Programs that use Megatron-core alone run as well. The module's docstring lists the stand-ins.

    Raises:
        RuntimeError: as cpu_platform.
    """
    with _without_dynamo(), cpu_platform(), contextlib.ExitStack() as stack:
        replace(stack, torch.cuda, _cuda_stand_ins())
        replace(stack, DataLoader, {"__iter__": _keeping_rng_state(DataLoader.__iter__)})
        if importlib.util.find_spec("megatron.training") is not None:
            _skip_compilers(stack)
        yield


@contextlib.contextmanager
def _without_dynamo() -> Iterator[None]:
    # Read when torch._dynamo is imported, which Megatron-core does.
    variable = "TORCHDYNAMO_DISABLE"
    before = os.environ.get(variable)
    os.environ[variable] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before


def _cuda_stand_ins() -> dict[str, Any]:
    true_is_available, true_device_count = torch.cuda.is_available, torch.cuda.device_count

    def is_available() -> bool:
        return True if _asked_by_loop() else true_is_available()

    def device_count() -> int:
        return 1 if _asked_by_loop() else true_device_count()

    def set_rng_state(new_state: torch.Tensor, device: Any = "cuda") -> None:
        torch.set_rng_state(new_state)

    return {
        "is_available": is_available,
        "device_count": device_count,
        "set_device": lambda device: None,
        "get_device_properties": lambda device=None: SimpleNamespace(major=10, minor=0),
        "current_stream": lambda device=None: torch.cuda.default_stream(),
        "stream": lambda stream: contextlib.nullcontext(),
        "set_rng_state": set_rng_state,
    }


def _keeping_rng_state(stock: Any) -> Any:
    @functools.wraps(stock)
    def iterate(self: Any) -> Any:
        with torch.random.fork_rng(devices=()):
            return stock(self)

    return iterate


def _asked_by_loop() -> bool:
    return f"{sys._getframe(2).f_globals.get('__name__', '')}.".startswith(_LOOP)


def _skip_compilers(stack: contextlib.ExitStack) -> None:
    from megatron.core import datasets
    from megatron.core.datasets import utils

    if importlib.util.find_spec("megatron.legacy") is not None:  # not in the wheels from 0.19 on
        from megatron.legacy import fused_kernels

        replace(stack, fused_kernels, {"load": lambda args: None})
    if importlib.util.find_spec("megatron.core.datasets.helpers_cpp") is None:
        built = [
            str(folder)
            for folder in (Path(entry, "megatron", "core", "datasets") for entry in sys.path)
            if any(folder.glob("helpers_cpp*.so"))
        ]
        if not built:
            return
        replace(stack, datasets, {"__path__": [*datasets.__path__, *built]})
    replace(stack, utils, {"compile_helpers": lambda: None})
