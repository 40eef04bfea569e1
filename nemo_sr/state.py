# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""A parameter's optimizer state: how it begins, and what a CUDA graph that captures a step needs of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from nemo_sr.kernels import capturable_twin
from nemo_sr.update import Backend


def fresh_state(param: Tensor, *, capturable: bool) -> dict[str, Tensor]:
    """Make a parameter's state before its first step.

    Args:
        param: The parameter.
        capturable: Whether the step is counted on the parameter's device instead of the host.

    Returns:
        step, a 0-dimensional int64; exp_avg and exp_avg_sq, zeros of the parameter's shape and dtype.
    """

    def zeros() -> Tensor:
        return torch.zeros_like(param, memory_format=torch.contiguous_format)

    device = param.device if capturable else "cpu"
    return {"step": torch.zeros((), dtype=torch.int64, device=device), "exp_avg": zeros(), "exp_avg_sq": zeros()}


def check_capture(
    name: str, param: Tensor, group: Mapping[str, Any], state: Mapping[str, Any], backend: Backend
) -> None:
    """Check that a CUDA graph can capture a parameter's step.

    Args:
        name: Of the parameter, for messages.
        param: The parameter.
        group: Its options.
        state: Its state.
        backend: The optimizer's.

    Raises:
        RuntimeError: the group is not capturable, the backend steps it through the host, or it has no state yet.
    """
    if not group["capturable"]:
        raise RuntimeError(
            f"a CUDA graph is being captured, and would repeat this step's number, learning rate and noise for "
            f"{name!r}. Make the optimizer with capturable=True, or step outside the graph."
        )
    if capturable_twin(backend, param.device) is None:
        raise RuntimeError(
            f"a CUDA graph can capture the step of the Triton backend alone; another one steps {name!r} on "
            f'{param.device}. Make the optimizer with backend="triton": where that cannot run, its error says why.'
        )
    if not state or state["step"].device != param.device:
        raise RuntimeError(
            f"a CUDA graph would make the state of {name!r} anew at each replay, since it is not on the device yet. "
            "Take a few steps with every parameter's gradient before the capture, as for torch's optimizers."
        )
