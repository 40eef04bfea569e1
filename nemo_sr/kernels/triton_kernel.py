# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
# ruff: noqa: N803, N806 (Triton's custom: what is known when compiling is in capitals)
"""The step as a Triton kernel: nemo_sr/update.py, bit for bit, for any number of parameters in one launch.

A program takes one chunk of one piece. Pieces and chunks are tables in device memory (nemo_sr/kernels/triton_table.py).
A piece whose addresses are multiples of 16 bytes and whose indices in the whole parameter come in whole groups of
eight takes the fast path: a thread holds eight neighbouring elements, reads and writes them in one access of 16 bytes
a tensor, and makes the noise of all eight with one Philox call a stream. Any other piece takes the exact path: an
element a lane, with a Philox call of its own.

BF16 is converted by integer operations, the root and the quotient are the correctly rounded ones, and the launch must
set ``enable_fp_fusion=False``: Triton's own casts, `/` and `tl.sqrt` give other bits.

Roofline: 14 bytes an element (weight, gradient and moments in, weight and moments out), 16 with FP32 gradients. An H200
moves about 4.3 TB/s, so 1024 elements take 3.3 ns; in that time its 132 SMs, at 1.755 GHz and 128 lanes a clock, issue
about 97 instructions an element. The fast path takes 76 on sm_90, with SR on weight and exp_avg_sq.

Blackwell's conversion with stochastic rounding (cvt.rs.bf16x2.f32) is not used: docs/gpu.md says why.
"""

import triton
import triton.language as tl

from nemo_sr.kernels.triton_scalars import SCALARS

ROW = 12
"""Entries of a row of the table of pieces."""

_ROW = tl.constexpr(ROW)
_SCALARS = tl.constexpr(SCALARS)
_LARGEST = tl.constexpr(3.3895313892515355e38)
"""The largest finite BF16, 7F7F0000 in FP32: from here upwards stochastic rounding adds nothing."""
_NAN = tl.constexpr(0x7FFF0000)


@triton.jit
def as_pointer(address, TYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """Make an address a pointer."""
    pointer = address.to(tl.pointer_type(TYPE))
    # The hint holds for an operation of this function only: on an argument or on a call's result it is lost.
    return tl.multiple_of(pointer, 16) if ALIGNED else pointer


@triton.jit
def spread(at, STRIDE: tl.constexpr, SIZE: tl.constexpr):
    """Number the first ``SIZE`` of the ``STRIDE`` values of each group."""
    return (at * STRIDE)[:, None] + tl.arange(0, SIZE)[None, :]


@triton.jit
def load(address, at, mask, FLOAT32: tl.constexpr, GROUPS: tl.constexpr):
    """Read the FP32 or BF16 values of groups, or of elements, as FP32."""
    if GROUPS and FLOAT32:
        # Two halves, since an access has at most four values: so a thread gets the eight that it gets of BF16.
        pointer = as_pointer(address, tl.float32, True) + spread(at, 8, 4)
        halves = tl.join(tl.load(pointer, mask=mask, other=0.0), tl.load(pointer + 4, mask=mask, other=0.0))
        x = tl.reshape(tl.trans(halves, (0, 2, 1)), [at.shape[0], 8])
    elif GROUPS:
        # Two elements a word: the shift and the mask are then one instruction each.
        words = tl.load(as_pointer(address, tl.uint32, True) + spread(at, 4, 4), mask=mask, other=0)
        bits = tl.reshape(tl.join(words << 16, words & 0xFFFF0000), [at.shape[0], 8])
        x = bits.to(tl.float32, bitcast=True)
    elif FLOAT32:
        x = tl.load(as_pointer(address, tl.float32, False) + at, mask=mask, other=0.0)
    else:
        bits = tl.load(as_pointer(address, tl.uint16, False) + at, mask=mask, other=0).to(tl.uint32) << 16
        x = bits.to(tl.float32, bitcast=True)
    return x


@triton.jit
def store(address, at, mask, bits, GROUPS: tl.constexpr):
    """Write the BF16 values in the upper halves of ``bits``."""
    if GROUPS:
        low, high = tl.split(tl.reshape(bits, [at.shape[0], 4, 2]))
        words = (low >> 16) | (high & 0xFFFF0000)
        tl.store(as_pointer(address, tl.uint32, True) + spread(at, 4, 4), words, mask=mask)
    else:
        tl.store(as_pointer(address, tl.uint16, False) + at, (bits >> 16).to(tl.uint16), mask=mask)


@triton.jit
def store_float32(address, at, mask, x, GROUPS: tl.constexpr):
    """Write FP32 values."""
    pointer = as_pointer(address, tl.float32, GROUPS)
    if GROUPS:
        low, high = tl.split(tl.trans(tl.reshape(x, [at.shape[0], 2, 4]), (0, 2, 1)))
        tl.store(pointer + spread(at, 8, 4), low, mask=mask)
        tl.store(pointer + spread(at, 8, 4) + 4, high, mask=mask)
    else:
        tl.store(pointer + at, x, mask=mask)


@triton.jit
def nearest(x):
    """Round FP32 to the nearest BF16, in the upper half of the bits; ties to even; any NaN to 7FFF."""
    bits = x.to(tl.uint32, bitcast=True)
    rounded = bits + ((bits >> 16) & 1) + 0x7FFF
    return tl.where(x != x, _NAN, rounded)


@triton.jit
def stochastic(x, noise):
    """Round FP32 stochastically to BF16, in the upper half of the bits; finite stays finite; any NaN to 7FFF."""
    bits = x.to(tl.uint32, bitcast=True)
    rounded = bits + tl.where(tl.abs(x) < _LARGEST, noise, 0)
    return tl.where(x != x, _NAN, rounded)


@triton.jit
def noise16(noise_of, group, slot, stream: tl.constexpr):
    """Make the noise: one Philox call a group, then the 16 bits of each element's slot."""
    key, step = noise_of
    # Counters of 64 bits would select Philox4x64.
    low, high = (group & 0xFFFFFFFF).to(tl.uint32), (group >> 32).to(tl.uint32)
    word0, word1, word2, word3 = tl.philox(key, low, high, step, stream)
    word = tl.where(slot < 4, tl.where(slot < 2, word0, word1), tl.where(slot < 6, word2, word3))
    return tl.where((slot & 1) == 0, word & 0xFFFF, word >> 16)


@triton.jit
def step_elements(addresses, at, mask, group, slot, scalars, noise_of, GROUPS: tl.constexpr, OPTIONS: tl.constexpr):
    """Step the groups, or the elements, numbered ``at``; ``group`` and ``slot`` are theirs in the whole parameter."""
    FLOAT32: tl.constexpr = OPTIONS[0]
    GRAD_FLOAT32: tl.constexpr = OPTIONS[1]
    EXP_AVG_STOCHASTIC: tl.constexpr = OPTIONS[2]
    EXP_AVG_SQ_STOCHASTIC: tl.constexpr = OPTIONS[3]
    MAXIMIZE: tl.constexpr = OPTIONS[4]
    weight, grad, exp_avg, exp_avg_sq = addresses
    decays, inverse_root_correction2, eps, decay, step_size, scale = scalars
    beta1, one_minus_beta1, beta2, one_minus_beta2 = decays
    w = load(weight, at, mask, FLOAT32, GROUPS)
    g = load(grad, at, mask, GRAD_FLOAT32, GROUPS)
    m = load(exp_avg, at, mask, FLOAT32, GROUPS)
    v = load(exp_avg_sq, at, mask, FLOAT32, GROUPS)
    if MAXIMIZE:
        # Triton's minus subtracts from +0, which loses the sign of zero.
        g = (g.to(tl.uint32, bitcast=True) ^ 0x80000000).to(tl.float32, bitcast=True)
    g = g * scale
    m = m * beta1 + g * one_minus_beta1
    v = v * beta2 + (g * g) * one_minus_beta2
    d = tl.sqrt_rn(v) * inverse_root_correction2 + eps
    w = w * decay - tl.div_rn(m, d) * step_size
    if FLOAT32:
        store_float32(weight, at, mask, w, GROUPS)
        store_float32(exp_avg, at, mask, m, GROUPS)
        store_float32(exp_avg_sq, at, mask, v, GROUPS)
    else:
        store(weight, at, mask, stochastic(w, noise16(noise_of, group, slot, 0)), GROUPS)
        if EXP_AVG_STOCHASTIC:
            store(exp_avg, at, mask, stochastic(m, noise16(noise_of, group, slot, 1)), GROUPS)
        else:
            store(exp_avg, at, mask, nearest(m), GROUPS)
        if EXP_AVG_SQ_STOCHASTIC:
            store(exp_avg_sq, at, mask, stochastic(v, noise16(noise_of, group, slot, 2)), GROUPS)
        else:
            store(exp_avg_sq, at, mask, nearest(v), GROUPS)


@triton.jit
def step_groups(addresses, at, count, group, scalars, noise_of, OPTIONS: tl.constexpr):
    """Step whole groups of eight, each in one thread."""
    slot = tl.arange(0, 8)[None, :]
    mask = (at < count // 8)[:, None]
    step_elements(addresses, at, mask, group[:, None], slot, scalars, noise_of, True, OPTIONS)


@triton.jit
def scalar(x):
    """Make a number FP32: Triton's interpreter takes one that is subnormal there as FP64."""
    return tl.full([], x, tl.float32)


@triton.jit(do_not_specialize=["step", "scale_on_device"])
def step_kernel(
    chunks,
    pieces,
    scale_on_device,
    scalars_on_device,
    beta1,
    one_minus_beta1,
    beta2,
    one_minus_beta2,
    inverse_root_correction2,
    eps,
    decay,
    step_size,
    grad_scale,
    step,
    OPTIONS: tl.constexpr,
    SCALE_ON_DEVICE: tl.constexpr,
    CAPTURABLE: tl.constexpr,
    PLAIN: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Step one chunk.

    Args:
        chunks: (piece, number of the chunk within the piece), int32.
        pieces: Rows of ``ROW`` int64: addresses of the weight, the gradient, exp_avg and exp_avg_sq; number of
            elements; Philox key; then, with the piece seen as lying in rows of equal length and distance: the index of
            the first row's origin in the whole parameter, the position of the piece's first element in that row, the
            length and the distance of rows; whether the piece takes the fast path; the parameter's row of scalars.
        scale_on_device: Pointer to s, FP32, read if ``SCALE_ON_DEVICE``.
        scalars_on_device: What scalars_kernel (nemo_sr/kernels/triton_scalars.py) has written, read if ``CAPTURABLE``.
        beta1: A scalar of the step (:class:`nemo_sr.update.StepScalars`), FP32; likewise the next eight.
        one_minus_beta1: Likewise.
        beta2: Likewise.
        one_minus_beta2: Likewise.
        inverse_root_correction2: Likewise; not read if ``CAPTURABLE``.
        eps: Likewise.
        decay: Likewise; not read if ``CAPTURABLE``.
        step_size: Likewise; not read if ``CAPTURABLE``.
        grad_scale: Likewise; not read if ``SCALE_ON_DEVICE``.
        step: The step modulo 2^32, as int32 bits; not read if ``CAPTURABLE``.
        OPTIONS: Whether weight and moments are FP32 (nothing is rounded then), whether the gradients are, whether
            exp_avg and exp_avg_sq are rounded stochastically, whether the gradient is negated.
        SCALE_ON_DEVICE: Where s is.
        CAPTURABLE: Where the step and what depends on it are.
        PLAIN: Every piece is contiguous and takes the fast path: nothing else is compiled.
        CHUNK: Elements of a chunk.
        BLOCK: Elements that the fast path takes at once; eight a thread.
    """
    entry = chunks + tl.program_id(0).to(tl.int64) * 2
    row = pieces + tl.load(entry).to(tl.int64) * _ROW
    begin = tl.load(entry + 1).to(tl.int64) * CHUNK
    BYTES: tl.constexpr = 4 if OPTIONS[0] else 2
    GRAD_BYTES: tl.constexpr = 4 if OPTIONS[1] else 2
    addresses = (
        tl.load(row) + begin * BYTES,
        tl.load(row + 1) + begin * GRAD_BYTES,
        tl.load(row + 2) + begin * BYTES,
        tl.load(row + 3) + begin * BYTES,
    )
    count = tl.minimum(tl.load(row + 4) - begin, CHUNK).to(tl.int32)
    if CAPTURABLE:
        own = scalars_on_device + tl.load(row + 11) * _SCALARS
        step = tl.load(own + 3)
        of_step = (
            tl.load(own).to(tl.float32, bitcast=True),
            tl.load(own + 1).to(tl.float32, bitcast=True),
            tl.load(own + 2).to(tl.float32, bitcast=True),
        )
    else:
        of_step = (scalar(inverse_root_correction2), scalar(decay), scalar(step_size))
    noise_of = (tl.load(row + 5).to(tl.uint64, bitcast=True), step.to(tl.uint32, bitcast=True))
    origin = tl.load(row + 6)
    position = tl.load(row + 7) + begin
    scale = tl.load(scale_on_device) if SCALE_ON_DEVICE else scalar(grad_scale)
    decays = (scalar(beta1), scalar(one_minus_beta1), scalar(beta2), scalar(one_minus_beta2))
    scalars = (decays, of_step[0], scalar(eps), of_step[1], of_step[2], scale)
    lanes = tl.arange(0, BLOCK // 8)
    if PLAIN:
        first = (origin + position) >> 3
        for base in range(0, count, BLOCK):
            at = base // 8 + lanes
            step_groups(addresses, at, count, first + at, scalars, noise_of, OPTIONS)
    else:
        length, distance = tl.load(row + 8), tl.load(row + 9)
        line = position // length
        first = origin + line * distance
        column = (position - line * length).to(tl.int32)
        if tl.load(row + 10) != 0:
            groups = (length >> 3).to(tl.int32)
            for base in range(0, count, BLOCK):
                at = base // 8 + lanes
                place = column // 8 + at
                crossed = place // groups
                group = (first >> 3) + crossed.to(tl.int64) * (distance >> 3) + (place - crossed * groups)
                step_groups(addresses, at, count, group, scalars, noise_of, OPTIONS)
        else:
            elements = length.to(tl.int32)
            for base in range(0, count, BLOCK // 8):
                at = base + lanes
                place = column + at
                crossed = place // elements
                index = first + crossed.to(tl.int64) * distance + (place - crossed * elements)
                slot = (index & 7).to(tl.int32)
                step_elements(addresses, at, at < count, index >> 3, slot, scalars, noise_of, False, OPTIONS)
