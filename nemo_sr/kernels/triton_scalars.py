# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
# ruff: noqa: N803 (Triton's custom: what is known when compiling is in capitals)
"""The scalars of a step that the device counts: nemo_sr.update.StepScalars, bit for bit, as a Triton kernel.

Everything is FP64, each operation correctly rounded on its own, in the order written, and one rounding to FP32. The
launch must set ``enable_fp_fusion=False``.
"""

import triton
import triton.language as tl

SCALARS = 4
"""Entries of a row of scalars: 1 / sqrt(1 - b2^t), 1 - lr * wd and lr / (1 - b1^t) as FP32, the step modulo 2^32."""

_SCALARS = tl.constexpr(SCALARS)


@triton.jit
def double(high, low):
    """Make an FP64 number of the halves of its bits: Triton passes Python's floats as FP32."""
    bits = (high.to(tl.int64) << 32) | (low.to(tl.int64) & 0xFFFFFFFF)
    return bits.to(tl.float64, bitcast=True)


@triton.jit
def power(base, exponent):
    """Raise to a positive power by left-to-right binary powering; leading zeros square 1."""
    result = tl.full(exponent.shape, 1.0, tl.float64)
    for position in range(63):
        bit = (exponent >> (62 - position)) & 1
        result = result * result
        result = tl.where(bit != 0, result * base, result)
    return result


@triton.jit
def put(rows, at, mask, column: tl.constexpr, x):
    """Write a column of the scalars, rounded to FP32."""
    tl.store(rows + at * _SCALARS + column, x.to(tl.float32).to(tl.int32, bitcast=True), mask=mask)


@triton.jit(
    do_not_specialize=["steps", "lr", "num", "beta1_high", "beta1_low", "beta2_high", "beta2_low", "wd_high", "wd_low"]
)
def scalars_kernel(
    rows,
    steps,
    lr,
    num,
    beta1_high,
    beta1_low,
    beta2_high,
    beta2_low,
    wd_high,
    wd_low,
    BLOCK: tl.constexpr,
):
    """Compute the scalars of each parameter's next step.

    Args:
        rows: Where to write them: a row of ``SCALARS`` int32 for each parameter.
        steps: Number of steps that each parameter has taken, int64.
        lr: Pointer to the learning rate, FP64.
        num: Number of parameters.
        beta1_high: Upper half of b1's bits as FP64, int32; likewise the next five.
        beta1_low: Lower half.
        beta2_high: Of b2.
        beta2_low: Of b2.
        wd_high: Of the weight decay.
        wd_low: Of the weight decay.
        BLOCK: Parameters that a program takes.
    """
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < num
    step = tl.load(steps + at, mask=mask, other=0) + 1
    rate = tl.load(lr)
    correction1 = 1.0 - power(double(beta1_high, beta1_low), step)
    correction2 = 1.0 - power(double(beta2_high, beta2_low), step)
    put(rows, at, mask, 0, 1.0 / tl.sqrt(correction2))
    put(rows, at, mask, 1, tl.broadcast_to(1.0 - rate * double(wd_high, wd_low), (BLOCK,)))
    put(rows, at, mask, 2, rate / correction1)
    tl.store(rows + at * _SCALARS + 3, (step & 0xFFFFFFFF).to(tl.uint32).to(tl.int32, bitcast=True), mask=mask)
