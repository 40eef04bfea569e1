# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""One AdamW-SR step in plain torch. This file is the specification: every backend gives the same bits for every input.

Each operation is correctly rounded FP32 on its own, with gradual underflow: two-operand mul, add, sub and div only
(forms with ``alpha=``, addcmul and lerp fuse on AVX), and never a scalar divisor (a reciprocal on CUDA). Not for
torch.compile, which fuses.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nemo_sr.layout import ShardLayout
from nemo_sr.noise import EXP_AVG_SQ_STREAM, EXP_AVG_STREAM, WEIGHT_STREAM, noise16_from_key
from nemo_sr.rounding import round_nearest, round_stochastic

CHUNK = 1 << 18
"""Elements per pass: bounds the step's temporary memory to some 40 MB whatever the parameter's size."""

_GRAIN = 1 << 15
"""Elements that torch gives a thread at least, in an elementwise operation on a CPU."""


def to_float32(x: float) -> float:
    """Round a Python float once to the nearest FP32 value; overflow to infinity."""
    return ctypes.c_float(x).value


def power(base: float, exponent: int) -> float:
    """Raise to a non-negative integer power by left-to-right binary powering in FP64, the same on host and device."""
    result = 1.0
    for bit in bin(exponent)[2:]:
        result *= result
        if bit == "1":
            result *= base
    return result


@dataclass(frozen=True)
class StepScalars:
    """The scalars of one step, each computed in FP64 in the order written and rounded once to FP32.

    Args:
        beta1: b1.
        one_minus_beta1: 1 - b1.
        beta2: b2.
        one_minus_beta2: 1 - b2.
        inverse_root_correction2: 1 / sqrt(1 - b2^t).
        eps: Added to the root.
        decay: 1 - lr * wd.
        step_size: lr / (1 - b1^t).
        grad_scale: s, the multiplier of the gradient: a float, or a 0-dimensional FP32 tensor on the device.
    """

    beta1: float
    one_minus_beta1: float
    beta2: float
    one_minus_beta2: float
    inverse_root_correction2: float
    eps: float
    decay: float
    step_size: float
    grad_scale: float | Tensor

    @classmethod
    def of_step(
        cls,
        step: int,
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        grad_scale: float | Tensor = 1.0,
    ) -> StepScalars:
        """Compute the scalars of step ``step`` (1 for the first)."""
        beta1, beta2 = betas
        return cls(
            beta1=to_float32(beta1),
            one_minus_beta1=to_float32(1 - beta1),
            beta2=to_float32(beta2),
            one_minus_beta2=to_float32(1 - beta2),
            inverse_root_correction2=to_float32(1 / math.sqrt(1 - power(beta2, step))),
            eps=to_float32(eps),
            decay=to_float32(1 - lr * weight_decay),
            step_size=to_float32(lr / (1 - power(beta1, step))),
            grad_scale=grad_scale if isinstance(grad_scale, Tensor) else to_float32(grad_scale),
        )


def adamw_float32(
    weight: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, scalars: StepScalars, *, maximize: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute one AdamW step in FP32, before any rounding to BF16.

    Args:
        weight: Shape (n,), bfloat16 or float32; likewise the next three.
        grad: The gradient, before ``scalars.grad_scale``.
        exp_avg: First moment.
        exp_avg_sq: Second moment.
        scalars: The step's scalars.
        maximize: Negate the gradient first.

    Returns:
        The new weight, exp_avg and exp_avg_sq. Shape (n,), float32 each.

    Source:
        Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019, in the operation order of the
        specification.
    """
    s = scalars
    g = grad.float()
    if maximize:
        g = -g
    g = g * s.grad_scale
    m = exp_avg.float() * s.beta1 + g * s.one_minus_beta1
    v = exp_avg_sq.float() * s.beta2 + (g * g) * s.one_minus_beta2
    # torch.sqrt of FP32 is one ulp off on a CPU; the FP64 root rounded to FP32 is exact.
    root = v.double().sqrt().float()
    d = root * s.inverse_root_correction2 + s.eps
    w = weight.float() * s.decay - (m / d) * s.step_size
    return w, m, v


@dataclass(frozen=True)
class ParamShard:
    """One parameter's part in a step.

    Args:
        weight: Shape (n,), bfloat16 or float32, contiguous; written once.
        grad: Shape (n,), bfloat16 or float32, contiguous.
        exp_avg: Shape (n,), dtype of ``weight``, contiguous.
        exp_avg_sq: Shape (n,), dtype of ``weight``, contiguous.
        key: The parameter's Philox key, from :func:`nemo_sr.noise.noise_key`.
        layouts: Where the elements lie in the whole parameter; the concatenation of the layouts is the shard.
    """

    weight: Tensor
    grad: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    key: int
    layouts: tuple[ShardLayout, ...]


@dataclass(frozen=True)
class StepOptions:
    """What the parameters that are stepped together have in common.

    Args:
        step: The optimizer step, 1 for the first.
        scalars: The step's scalars.
        exp_avg_rounding: "nearest" or "stochastic".
        exp_avg_sq_rounding: "nearest" or "stochastic".
        maximize: Negate the gradient first.
    """

    step: int
    scalars: StepScalars
    exp_avg_rounding: str
    exp_avg_sq_rounding: str
    maximize: bool = False


@dataclass(frozen=True)
class CapturableOptions:
    """What parameters have in common whose steps are on the device, where the host cannot read them.

    Args:
        lr: The learning rate: a float, or a one-element tensor whose value is the device's to read.
        betas: b1 and b2.
        eps: Added to the root.
        weight_decay: Decoupled weight decay.
        grad_scale: s, the multiplier of the gradient: a float, or a 0-dimensional FP32 tensor.
        exp_avg_rounding: "nearest" or "stochastic".
        exp_avg_sq_rounding: "nearest" or "stochastic".
        maximize: Negate the gradient first.
    """

    lr: float | Tensor
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    grad_scale: float | Tensor
    exp_avg_rounding: str
    exp_avg_sq_rounding: str
    maximize: bool = False


Backend = Callable[[Sequence[ParamShard], StepOptions], None]
"""Takes one step in place, for any number of parameters that share its options."""

CapturableBackend = Callable[[Sequence[ParamShard], Sequence[Tensor], CapturableOptions], None]
"""Likewise, with the number of steps that each parameter has taken, int64 on the device; reads nothing on the host."""


def adamw_sr_(shards: Sequence[ParamShard], options: StepOptions) -> None:
    """Take one AdamW-SR step in place: the reference backend.

    Args:
        shards: The parameters.
        options: What they have in common.

    Raises:
        RuntimeError: the process flushes subnormal numbers, and a shard is on the CPU.

    Source:
        arXiv 2502.20566; FP32 tensors take the same formulas without rounding.
    """
    if any(shard.weight.device.type == "cpu" for shard in shards):
        require_gradual_underflow()
    for shard in shards:
        _step_shard_(shard, options)


def _step_shard_(shard: ParamShard, options: StepOptions) -> None:
    weight, grad, exp_avg, exp_avg_sq = shard.weight, shard.grad, shard.exp_avg, shard.exp_avg_sq
    for here, index in chunks(shard.layouts, weight.device):
        w, m, v = adamw_float32(
            weight[here], grad[here], exp_avg[here], exp_avg_sq[here], options.scalars, maximize=options.maximize
        )
        if weight.dtype == torch.float32:
            weight[here], exp_avg[here], exp_avg_sq[here] = w, m, v
            continue
        for tensor, value, rounding, stream in (
            (weight, w, "stochastic", WEIGHT_STREAM),
            (exp_avg, m, options.exp_avg_rounding, EXP_AVG_STREAM),
            (exp_avg_sq, v, options.exp_avg_sq_rounding, EXP_AVG_SQ_STREAM),
        ):
            if rounding == "stochastic":
                tensor[here] = round_stochastic(value, noise16_from_key(shard.key, options.step, stream, index))
            else:
                tensor[here] = round_nearest(value)


def chunks(layouts: Sequence[ShardLayout], device: torch.device) -> Iterator[tuple[slice, Tensor]]:
    """Cut a shard into pieces of bounded size.

    Yields:
        Where the piece lies in the shard, and its elements' indices in the whole parameter (int64).
    """
    begin = 0
    for layout in layouts:
        for inner in range(0, layout.numel, CHUNK):
            end = min(inner + CHUNK, layout.numel)
            yield slice(begin + inner, begin + end), layout.index(inner, end, device=device)
        begin += layout.numel


def require_gradual_underflow() -> None:
    """Check that no thread of torch's CPU pool flushes subnormals to zero.

    ``torch.set_flush_denormal`` acts on the calling thread alone, so the probe gives every thread some elements.

    Raises:
        RuntimeError: a thread flushes.
    """
    subnormal = torch.full((_GRAIN * torch.get_num_threads(),), 1e-40, dtype=torch.float32, device="cpu")
    if not bool((subnormal * 1.0).all()):
        raise RuntimeError(
            "AdamWSR's reference backend needs gradual underflow; this process flushes subnormal numbers to zero. "
            "Leave torch.set_flush_denormal off: threads that torch starts while it is on keep it to the end."
        )
