# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The step's backends, behind one signature (:data:`nemo_sr.update.Backend`): predicates and a choice."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache

import torch

from nemo_sr.kernels.cpu_backend import adamw_sr_cpu_, why_not_cpu
from nemo_sr.kernels.triton_backend import adamw_sr_triton_, adamw_sr_triton_capturable_, is_capturing, why_not_triton
from nemo_sr.update import Backend, CapturableBackend, ParamShard, StepOptions, adamw_sr_

__all__ = [
    "BACKENDS",
    "adamw_sr_auto_",
    "can_use_cpu",
    "can_use_triton",
    "capturable_twin",
    "choose_backend",
    "is_capturing",
]

BACKENDS = ("auto", "reference", "cpu", "triton")


def can_use_cpu() -> bool:
    """Tell whether the native CPU backend can run in this process."""
    return why_not_cpu() is None


def can_use_triton(device: torch.device | None = None) -> bool:
    """Tell whether the Triton backend can run in this process, on a device if one is given."""
    return why_not_triton(device) is None


def choose_backend(name: str) -> Backend:
    """Return the step of the backend of that name.

    Args:
        name: One of "auto", "reference", "cpu" (native C) and "triton". "auto" takes, for each parameter, the fastest
            that can run on its device, and says once where that is the reference.

    Returns:
        The step's function.

    Raises:
        ValueError: no backend has that name.
        RuntimeError: the backend cannot run here; never a silent fallback.
    """
    if name not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}; got {name!r}. Choose one of them.")
    if name == "auto":
        return adamw_sr_auto_
    if name == "reference":
        return adamw_sr_
    reason = why_not_cpu() if name == "cpu" else why_not_triton(None)
    if reason is not None:
        raise RuntimeError(
            f"backend={name!r} was asked for, but it cannot run here: {reason} "
            'Or use backend="auto" or backend="reference": they give the same bits.'
        )
    return adamw_sr_cpu_ if name == "cpu" else adamw_sr_triton_


def capturable_twin(backend: Backend, device: torch.device) -> CapturableBackend | None:
    """Return the form of a backend that leaves step, learning rate and scale on a device, or None if it has none.

    The Triton backend has one. The others read what they need on the host, which a CPU's parameters do not mind.
    """
    if backend is adamw_sr_auto_:
        backend = _fastest(device)
    return adamw_sr_triton_capturable_ if backend is adamw_sr_triton_ else None


def adamw_sr_auto_(shards: Sequence[ParamShard], options: StepOptions) -> None:
    """Take one AdamW-SR step in place, on each device with the fastest backend that can run there.

    Args:
        shards: The parameters.
        options: What they have in common.

    Raises:
        RuntimeError: the reference has to step parameters on the CPU, and the process flushes subnormal numbers.
    """
    by_device: dict[torch.device, list[ParamShard]] = {}
    for shard in shards:
        by_device.setdefault(shard.weight.device, []).append(shard)
    for device, there in by_device.items():
        _fastest(device)(there, options)


@cache
def _fastest(device: torch.device) -> Backend:
    if device.type == "cpu":
        name, reason = "native CPU", why_not_cpu()
        backend: Backend = adamw_sr_cpu_
    elif device.type == "cuda":
        name, reason = "Triton", why_not_triton(device)
        backend = adamw_sr_ if reason is not None else adamw_sr_triton_
    else:
        return adamw_sr_
    if reason is None:
        return backend
    warnings.warn(
        f"AdamWSR steps the parameters on {device} with its reference backend, which gives the same bits but is slow; "
        f"the {name} backend cannot run: {reason}",
        stacklevel=2,
    )
    return adamw_sr_
