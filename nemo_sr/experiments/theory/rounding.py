# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The rounding that checks run with: nemo_sr's own, with its own noise, or one to nearest that must make them fail."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from nemo_sr.noise import WEIGHT_STREAM, noise_key, philox4x32
from nemo_sr.rounding import round_nearest, round_stochastic

ALL_NOISE = torch.arange(65536, dtype=torch.int32)
"""Every value that the noise of one element can take."""

_CHUNK = 1 << 17
"""Noise values that are computed at a time: a call for a few runs costs as much as one for thousands."""

ROUNDINGS = ("stochastic", "nearest", "none")


def round_with(rounding: str, x: Tensor, noise: Tensor) -> Tensor:
    """Round FP32 to BF16 values.

    Args:
        rounding: "stochastic", "nearest" or "none".
        x: Any shape, float32.
        noise: Same shape, int32; used by "stochastic" alone.

    Returns:
        Same shape, float32.

    Raises:
        ValueError: ``rounding`` is none of these.
    """
    if rounding not in ROUNDINGS:
        raise ValueError(f"rounding must be one of {', '.join(ROUNDINGS)}; got {rounding!r}. Choose one of them.")
    if rounding == "none":
        return x
    return (round_stochastic(x, noise) if rounding == "stochastic" else round_nearest(x)).float()


def outcomes(rounding: str, x: Tensor) -> list[tuple[float, int]]:
    """Return the values that one FP32 number is rounded to, and how many of the 65,536 noise values give each.

    Args:
        rounding: "stochastic", "nearest" or "none".
        x: One element, float32.
    """
    rounded = round_with(rounding, x.expand(65536), ALL_NOISE)
    values = {rounded.min().item(), rounded.max().item()}
    found = [(value, int((rounded == value).sum())) for value in sorted(values)]
    assert sum(count for _, count in found) == 65536, "an FP32 number is rounded to two values at most"
    return found


def round_step(rounding: str, x: Tensor, *, seed: int, step: int) -> Tensor:
    """Round FP32 weights as AdamWSR rounds those of a parameter "w", whose elements these are.

    Args:
        rounding: "stochastic", "nearest" or "none".
        x: Any shape, float32; runs side by side are further elements, and so have independent noise.
        seed: The run's seed.
        step: 1 for the first.

    Returns:
        Same shape, float32.
    """
    if rounding != "stochastic":
        return round_with(rounding, x, torch.zeros((), dtype=torch.int32).expand(x.shape))
    num = max(_CHUNK // x.numel(), 1)
    noise = _noise_of_steps(seed, step // num * num, num, x.numel())[step % num]
    return round_with(rounding, x, noise.view(x.shape))


@lru_cache(maxsize=1)
def _noise_of_steps(seed: int, first: int, num: int, size: int) -> Tensor:
    """Return what noise16 returns for the weight of a parameter "w" in several steps, in one call of Philox.

    Returns:
        Shape (num, size), int32.
    """
    blocks, steps = torch.arange(-(-size // 8)), torch.arange(first, first + num)[:, None]
    key, zero = noise_key(seed, "w"), torch.zeros((), dtype=torch.int64)
    counter = (blocks, zero, steps, zero + WEIGHT_STREAM)
    words = philox4x32(counter, (key & 0xFFFFFFFF, key >> 32))
    halves = torch.stack([half for word in words for half in (word & 0xFFFF, word >> 16)], dim=2)
    return halves.view(num, -1)[:, :size].to(torch.int32)


def ulp(x: Tensor) -> Tensor:
    """Return the distance between BF16 values just above ``|x|``.

    Args:
        x: Any shape, float32 or float64, finite.

    Returns:
        Same shape, float64; 2^-133 among the subnormals.
    """
    _, exponent = torch.frexp(x)
    return torch.ldexp(torch.ones_like(x, dtype=torch.float64), (exponent - 8).clamp(min=-133))


def rounding_variance(x: Tensor) -> Tensor:
    """Return (x - lo)(hi - x), the variance of SR(x).

    Args:
        x: Any shape, float32, finite.

    Returns:
        Same shape, float64.
    """
    lo = (x.view(torch.int32) & -65536).view(torch.float32).double()  # the one nearer to zero
    above = (x.double() - lo).abs()
    return above * (ulp(lo) - above)
