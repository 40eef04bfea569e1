# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Inputs on which an error of one FP32 ulp shows in the BF16 results, where random ones hide 65,535 of 65,536."""

from dataclasses import dataclass

import numpy as np
import torch

import reference

SEED, NAME, STEP = 9, "w", 10
CASE = {"lr": 7e-4, "betas": (0.9, 0.95), "eps": 1e-4, "wd": 0.1, "t": STEP}


@dataclass
class SharpInputs:
    """Weight, gradient and moments (bfloat16, 1-d), and what a right step writes, as bits of the same length."""

    tensors: tuple[torch.Tensor, ...]
    expected: dict[str, np.ndarray]


def bf16(n, seed, scale):
    x = (np.random.default_rng(seed).standard_normal(n) * scale).astype(np.float32)
    return reference.from_bf16(x.view(np.uint32) >> 16)


def written(values, n):
    noise = [[reference.noise(SEED, STEP, stream, NAME, e) for e in range(n)] for stream in (0, 2)]
    w, m, v = (reference.bits(value).tolist() for value in values)
    return {
        "weight": np.array([reference.stochastic(b, x) for b, x in zip(w, noise[0], strict=True)]),
        "exp_avg": np.array([reference.nearest(b) for b in m]),
        "exp_avg_sq": np.array([reference.stochastic(b, x) for b, x in zip(v, noise[1], strict=True)]),
    }


def cancelling_weights(n=4096):
    """Weights equal to BF16 of the step they are about to take: what is left of them are the step's last bits."""
    g, m, v = bf16(n, 1, 1e-3), bf16(n, 2, 1e-3), np.abs(bf16(n, 3, 1e-6))
    zero = np.zeros(n, dtype=np.float32)
    step = -reference.step_float32(zero, g, m, v, **CASE)[0]
    w = reference.from_bf16([reference.nearest(b) for b in reference.bits(step).tolist()])
    expected = written(reference.step_float32(w, g, m, v, **CASE), n)
    return SharpInputs(tuple(torch.from_numpy(x).bfloat16() for x in (w, g, m, v)), expected)


def second_moments_on_the_edge(n=512):
    """Gradients for which low16(v) + noise is 65535 or 65536: the next FP32 value up or down rounds the other way."""
    w, m = bf16(n, 4, 0.02), bf16(n, 5, 1e-3)
    g, v = np.empty(n, dtype=np.float32), np.empty(n, dtype=np.float32)
    # Any pair (g, v) is on the edge for one noise value in 32,768; each element takes one that suits its noise.
    pairs = 1 << 20
    many_g, many_v = bf16(pairs, 6, 1e-3), np.abs(bf16(pairs, 7, 1e-6))
    zero = np.zeros(pairs, dtype=np.float32)
    low = reference.bits(reference.step_float32(zero, many_g, zero, many_v, **CASE)[2]) & 0xFFFF
    by_low = dict(zip(low.tolist(), range(pairs), strict=True))
    for e in range(n):
        noise = reference.noise(SEED, STEP, 2, NAME, e)
        found = (by_low.get(total - noise) for total in (65535 + e % 2, 65536 - e % 2))
        pair = next((pair for pair in found if pair is not None), 0)
        g[e], v[e] = many_g[pair], many_v[pair]
    expected = written(reference.step_float32(w, g, m, v, **CASE), n)
    return SharpInputs(tuple(torch.from_numpy(x).bfloat16() for x in (w, g, m, v)), expected)


ALL = {"cancelling weights": cancelling_weights, "second moments on the edge": second_moments_on_the_edge}
