# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Philox noise as a pure function of what an element is (DESIGN: noise, version 1).

An element's noise is a function of the run's seed, the parameter's canonical name, the optimizer step, the stream and
the element's row-major index in the whole, unsharded parameter. There is no generator and no state.
"""

from __future__ import annotations

from hashlib import blake2b

import torch
from torch import Tensor

NOISE_VERSION = 1

WEIGHT_STREAM = 0
EXP_AVG_STREAM = 1
EXP_AVG_SQ_STREAM = 2

_MASK32 = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def noise_key(seed: int, name: str) -> int:
    """Derive the 64-bit Philox key of one parameter.

    Args:
        seed: The run's seed, in [0, 2**64).
        name: The parameter's canonical name.

    Returns:
        ``blake2b(seed as 8 bytes little-endian + name in UTF-8, digest_size=8)`` as a little-endian integer.

    Raises:
        TypeError: ``seed`` is not an int or ``name`` not a str.
        ValueError: ``seed`` is outside [0, 2**64).

    Source:
        Noise specification, version 1.
    """
    validate_seed(seed)
    if not isinstance(name, str):
        raise TypeError(f"name must be a str; got {type(name).__name__}. Pass the parameter's canonical name.")
    digest = blake2b(seed.to_bytes(8, "little") + name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def validate_seed(seed: int) -> None:
    """Check that a seed is an unsigned 64-bit integer.

    Raises:
        TypeError: ``seed`` is not an int.
        ValueError: ``seed`` is outside [0, 2**64).
    """
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise TypeError(f"seed must be an int; got {type(seed).__name__}. Pass a whole number in [0, 2**64).")
    if not 0 <= seed < 1 << 64:
        raise ValueError(f"seed must be in [0, 2**64); got {seed}. Pass an unsigned 64-bit number.")


def philox4x32(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[int, int] | tuple[Tensor, Tensor]
) -> tuple[Tensor, ...]:
    """Philox4x32-10, elementwise.

    Args:
        counter: Four int64 tensors of one shape (or broadcastable), each value in [0, 2**32).
        key: Two integers in [0, 2**32), or two int64 tensors of such.

    Returns:
        Four int64 tensors, each value in [0, 2**32).

    Source:
        Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    c0, c1, c2, c3 = counter
    k0: int | Tensor
    k1: int | Tensor
    k0, k1 = key
    for _ in range(_ROUNDS):
        # int64 products wrap modulo 2**64, so the two halves are those of the unsigned product.
        p0 = c0 * _MULTIPLIERS[0]
        p1 = c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((p1 >> 32) & _MASK32) ^ c1 ^ k0,
            p1 & _MASK32,
            ((p0 >> 32) & _MASK32) ^ c3 ^ k1,
            p0 & _MASK32,
        )
        k0 = (k0 + _WEYL[0]) & _MASK32
        k1 = (k1 + _WEYL[1]) & _MASK32
    return c0, c1, c2, c3


def noise16_from_key(key: int, step: int, stream: int, index: Tensor) -> Tensor:
    """Compute the noise of elements of the parameter whose key is known; see :func:`noise16`.

    Args:
        key: The parameter's key, from :func:`noise_key`.
        step: Optimizer step; taken modulo 2**32.
        stream: 0 for the weight, 1 for exp_avg, 2 for exp_avg_sq.
        index: Non-negative row-major indices in the whole parameter. Shape (n,), int64.

    Returns:
        Shape (n,), int32, in [0, 65536).
    """
    # Eight neighbouring elements share one Philox call; neighbours in `index` are usually neighbours in the parameter.
    block, position = torch.unique_consecutive(index >> 3, return_inverse=True)
    counter = (
        block & _MASK32,
        block >> 32,
        torch.full_like(block, step & _MASK32),
        torch.full_like(block, stream),
    )
    words = philox4x32(counter, (key & _MASK32, key >> 32))
    halves = torch.stack([half for word in words for half in (word & 0xFFFF, word >> 16)], dim=1)
    return halves.view(-1)[position * 8 + (index & 7)].to(torch.int32)


def noise16(seed: int, step: int, stream: int, name: str, index: Tensor) -> Tensor:
    """Compute the 16 noise bits of elements of one parameter.

    Args:
        seed: The run's seed, in [0, 2**64).
        step: Optimizer step, 1 for the first, non-negative; taken modulo 2**32.
        stream: 0 for the weight, 1 for exp_avg, 2 for exp_avg_sq.
        name: The parameter's canonical name.
        index: Row-major indices in the whole, unsharded parameter. Shape (n,), int64.

    Returns:
        Uniform integers in [0, 65536). Shape (n,), int32, on the device of ``index``.

    Raises:
        TypeError: ``index`` is not an int64 tensor, or seed, step, stream or name have the wrong type.
        ValueError: a negative index or step, an unknown stream, or a seed outside [0, 2**64).

    Source:
        Noise specification, version 1.
    """
    key = noise_key(seed, name)
    if not isinstance(step, int) or isinstance(step, bool):
        raise TypeError(f"step must be an int; got {type(step).__name__}. Pass the optimizer step, 1 for the first.")
    if step < 0:
        raise ValueError(f"step must not be negative; got {step}. The first step is 1.")
    if not isinstance(stream, int) or isinstance(stream, bool):
        raise TypeError(f"stream must be an int; got {type(stream).__name__}. Pass 0, 1 or 2.")
    if stream not in (WEIGHT_STREAM, EXP_AVG_STREAM, EXP_AVG_SQ_STREAM):
        raise ValueError(f"stream must be 0 (weight), 1 (exp_avg) or 2 (exp_avg_sq); got {stream}. Pass one of them.")
    if not isinstance(index, Tensor) or index.dtype != torch.int64 or index.dim() != 1:
        given = f"{index.dtype} of shape {tuple(index.shape)}" if isinstance(index, Tensor) else type(index).__name__
        raise TypeError(f"index must be an int64 tensor of shape (n,); got {given}.")
    if index.numel() and int(index.min()) < 0:
        raise ValueError(f"index must not be negative; got {int(index.min())}. Indices count from the first element.")
    return noise16_from_key(key, step, stream, index)
