# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""A parameter's gradient, checked against the parameter and its moments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from nemo_sr.dtensor import place_like


def find_grad(name: str, param: Tensor, state: Mapping[str, Any]) -> Tensor | None:
    """Return a parameter's gradient: ``param.decoupled_grad`` where that is set, else ``param.grad``.

    Args:
        name: Of the parameter, for messages.
        param: The parameter.
        state: Its optimizer state, empty before its first step.

    Returns:
        The gradient, BF16 or FP32, with the parameter's shape (and placements, for a DTensor); or None.

    Raises:
        TypeError: the gradient is sparse or of another dtype, or the moments' dtype is not the parameter's.
        ValueError: the gradient has another shape or device.
    """
    grad: Tensor | None = getattr(param, "decoupled_grad", None)
    grad = param.grad if grad is None else grad
    if grad is None:
        return None
    for key in ("exp_avg", "exp_avg_sq"):
        moment = state.get(key)
        if moment is not None and (moment.dtype != param.dtype or moment.device != param.device):
            raise TypeError(
                f"{key} of {name!r} must have its dtype and device, {param.dtype} on {param.device}; it is "
                f"{moment.dtype} on {moment.device}. Convert the model before its first step, or load its state anew."
            )
    if grad.layout != torch.strided or grad.dtype not in (torch.bfloat16, torch.float32):
        raise TypeError(
            f"gradients must be dense and bfloat16 or float32; {name!r} has a {grad.dtype} gradient with layout "
            f"{grad.layout}. Use a dense layer, or cast the gradient."
        )
    if grad.shape != param.shape or grad.device != param.device:
        raise ValueError(
            f"a gradient must have its parameter's shape and device; {name!r} has {tuple(param.shape)} on "
            f"{param.device}, its gradient {tuple(grad.shape)} on {grad.device}. Correct the gradient."
        )
    return place_like(f"the gradient of {name!r}", grad, param)
