# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""FP32 to BF16, by integer operations, so that every device and path gives the same bits. The noise is an argument."""

from __future__ import annotations

import torch
from torch import Tensor

_MAGNITUDE = 0x7FFFFFFF
_INFINITY = 0x7F800000
_LARGEST_BF16 = 0x7F7F0000
_NAN_BF16 = 0x7FFF


def _require_float32(x: Tensor) -> None:
    if not isinstance(x, Tensor) or x.dtype != torch.float32:
        given = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(f"x must be a float32 tensor; got {given}. Convert it with x.float().")


def _high_half(bits: Tensor, is_nan: Tensor) -> Tensor:
    """Take the upper 16 of 32 bits as BF16; any NaN is written as 7FFF."""
    return (bits >> 16).masked_fill(is_nan, _NAN_BF16).to(torch.int16).view(torch.bfloat16)


def round_stochastic(x: Tensor, noise: Tensor) -> Tensor:
    """Round float32 to bfloat16, away from zero with probability equal to the dropped fraction.

    The 16 noise bits are added to the low half of x's bits and the low half is dropped.

    Args:
        x: Values to round. Shape (n,), float32.
        noise: Uniform integers; their low 16 bits are used. Shape (n,), int32.

    Returns:
        Shape (n,), bfloat16. Values that BF16 holds exactly, infinities and signed zeros keep their bits; subnormals
        are not flushed; a finite x above the largest finite BF16 gives that value; any NaN gives 7FFF.

    Raises:
        TypeError: a dtype differs from the above.
        ValueError: the shapes differ.

    Source:
        arXiv 2502.20566, stochastic rounding; the bits are those of the noise specification, version 1.
    """
    _require_float32(x)
    if not isinstance(noise, Tensor) or noise.dtype != torch.int32:
        given = noise.dtype if isinstance(noise, Tensor) else type(noise).__name__
        raise TypeError(f"noise must be an int32 tensor; got {given}. nemo_sr.noise16 returns one.")
    if x.shape != noise.shape:
        raise ValueError(
            f"x and noise must have one shape; got {tuple(x.shape)} and {tuple(noise.shape)}. One noise an element."
        )
    bits = x.view(torch.int32)
    magnitude = bits & _MAGNITUDE
    # From the largest finite BF16 upwards nothing may be added: finite values stay finite, infinity stays infinity.
    added = (noise & 0xFFFF).masked_fill(magnitude >= _LARGEST_BF16, 0)
    return _high_half(bits + added, magnitude > _INFINITY)


def round_nearest(x: Tensor) -> Tensor:
    """Round float32 to the nearest bfloat16, ties to even, overflow to infinity.

    Args:
        x: Values to round. Shape (n,), float32.

    Returns:
        Shape (n,), bfloat16. Subnormals are not flushed; any NaN gives 7FFF.

    Raises:
        TypeError: ``x`` is not float32.

    Source:
        IEEE 754 roundTiesToEven.
    """
    _require_float32(x)
    bits = x.view(torch.int32)
    is_nan = (bits & _MAGNITUDE) > _INFINITY
    # Half an ulp less one, and one more where the kept part is odd.
    return _high_half(bits.masked_fill(is_nan, 0) + (0x7FFF + ((bits >> 16) & 1)), is_nan)
