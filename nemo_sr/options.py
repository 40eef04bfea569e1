# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The options of a parameter group: checked, and converted to the types that the step computes with."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from nemo_sr.noise import NOISE_VERSION, validate_seed
from nemo_sr.update import CapturableOptions, StepOptions, StepScalars
from nemo_sr.words import ROUNDINGS

_CONSTRUCTOR_ONLY = ("backend", "fp32_params")


def normalize_options(group: dict[str, Any], *, read_lr: bool = True) -> None:
    """Check a group's options, and convert betas, eps and weight_decay to Python floats, in place.

    Scalars of other types (NumPy's, tensors) would make the step compute its own scalars in FP32.

    Args:
        group: A parameter group with all options present.
        read_lr: Whether to check the value of a tensor lr, for which the host waits where it is on a device.

    Raises:
        ValueError: an option is out of its range or unknown.
        TypeError: an option is of the wrong type.
    """
    for name in ("eps", "weight_decay"):
        group[name] = _number(name, group[name])
    group["betas"] = _betas(group["betas"])
    lr = group["lr"]
    if not isinstance(lr, Tensor):
        group["lr"] = _number("lr", lr)
    elif lr.numel() != 1:
        raise ValueError(f"lr must be a number or a one-element tensor; got shape {tuple(lr.shape)}. Pass one value.")
    elif read_lr:
        _number("lr", lr)
    for name in ("exp_avg_rounding", "exp_avg_sq_rounding"):
        if group[name] not in ROUNDINGS:
            raise ValueError(f"{name} must be one of {', '.join(ROUNDINGS)}; got {group[name]!r}. Choose one of them.")
    validate_seed(group["seed"])
    if group["noise_version"] != NOISE_VERSION:
        raise ValueError(
            f"this nemo_sr knows noise version {NOISE_VERSION}; got version {group['noise_version']!r}. "
            "Use the nemo_sr release that wrote it."
        )
    if not isinstance(group["capturable"], bool):
        raise TypeError(f"capturable must be True or False; got {group['capturable']!r}. Pass one of them.")
    for name in _CONSTRUCTOR_ONLY:
        if name in group:
            raise ValueError(f"{name} holds for the whole optimizer; a group sets it. Pass it to the constructor.")


def check_grad_scale(grad_scale: Any) -> None:
    """Check the gradient's multiplier: a number, or a 0-dimensional FP32 tensor.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(grad_scale, Tensor):
        if grad_scale.dim() == 0 and grad_scale.dtype == torch.float32:
            return
        given = f"{grad_scale.dtype} of shape {tuple(grad_scale.shape)}"
    elif isinstance(grad_scale, numbers.Real):
        return
    else:
        given = type(grad_scale).__name__
    raise TypeError(
        f"grad_scale must be a number or a 0-dimensional float32 tensor; got {given}. Convert it with float()."
    )


def step_options(group: Mapping[str, Any], step: int, grad_scale: float | Tensor) -> StepOptions:
    """Make the options of a group's step ``step``.

    Raises:
        ValueError: the learning rate is out of its range.
    """
    scalars = StepScalars.of_step(
        step,
        lr=_number("lr", group["lr"]),
        betas=group["betas"],
        eps=group["eps"],
        weight_decay=group["weight_decay"],
        grad_scale=grad_scale,
    )
    return StepOptions(
        step, scalars, group["exp_avg_rounding"], group["exp_avg_sq_rounding"], maximize=group["maximize"]
    )


def capturable_options(group: Mapping[str, Any], grad_scale: float | Tensor) -> CapturableOptions:
    """Make the options of a group's steps that the device counts; reads no tensor."""
    names = ("lr", "betas", "eps", "weight_decay", "exp_avg_rounding", "exp_avg_sq_rounding", "maximize")
    return CapturableOptions(grad_scale=grad_scale, **{name: group[name] for name in names})


def _number(name: str, value: Any) -> float:
    if isinstance(value, str) or not isinstance(value, numbers.Real | Tensor):
        raise TypeError(f"{name} must be a number; got {value!r}. (YAML reads 1e-8 as text: write 1.0e-8.)")
    number = float(value)
    if not 0.0 <= number < float("inf"):
        raise ValueError(f"{name} must be finite and not negative; got {value}. Pass a number in [0, inf).")
    return number


def _betas(betas: Any) -> tuple[float, float]:
    if not isinstance(betas, Sequence) or isinstance(betas, str) or len(betas) != 2:
        raise TypeError(f"betas must be two numbers; got {betas!r}. Pass, say, (0.9, 0.999).")
    first, second = (_number("betas", beta) for beta in betas)
    if not (first < 1.0 and second < 1.0):
        raise ValueError(f"betas must be in [0, 1); got {tuple(betas)}. Pass, say, (0.9, 0.999).")
    return first, second
