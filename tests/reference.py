# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""An independent model of the specification: Python integers and NumPy, no code shared with nemo_sr.

NumPy's float32 +, -, *, / and sqrt are the processor's, each correctly rounded.
"""

import math
from hashlib import blake2b

import numpy as np

M32 = 0xFFFFFFFF


def philox(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & M32, (p0 >> 32) ^ c[3] ^ k[1], p0 & M32]
        k = [(k[0] + 0x9E3779B9) & M32, (k[1] + 0xBB67AE85) & M32]
    return c


def noise(seed, step, stream, name, e):
    digest = blake2b(seed.to_bytes(8, "little") + name.encode("utf-8"), digest_size=8).digest()
    key = int.from_bytes(digest, "little")
    block = e >> 3
    words = philox([block & M32, block >> 32, step % 2**32, stream], [key & M32, key >> 32])
    slot = e & 7
    return (words[slot >> 1] >> (16 * (slot & 1))) & 0xFFFF


def stochastic(x_bits, noise_bits):
    """Round one FP32, as 32 bits, to BF16, as 16 bits."""
    magnitude = x_bits & 0x7FFFFFFF
    if magnitude > 0x7F800000:
        return 0x7FFF
    if magnitude == 0x7F800000:
        return x_bits >> 16
    if magnitude > 0x7F7F0000:
        return (x_bits >> 31) << 15 | 0x7F7F
    return (x_bits + (noise_bits & 0xFFFF)) >> 16


def nearest(x_bits):
    magnitude = x_bits & 0x7FFFFFFF
    if magnitude > 0x7F800000:
        return 0x7FFF
    low, high = x_bits & 0xFFFF, x_bits >> 16
    up = low > 0x8000 or (low == 0x8000 and high & 1)
    return high + up


def power(base, exponent):
    result = 1.0
    for bit in f"{exponent:b}":
        result = result * result
        if bit == "1":
            result = result * base
    return result


def step_float32(w, g, m, v, t, lr, betas, eps, wd, scale=1.0, maximize=False):
    """New w, m, v as float32 arrays, before rounding."""
    f = np.float32
    b1, b2 = betas
    with np.errstate(all="ignore"):
        g = (-g if maximize else g) * f(scale)
        m = m * f(b1) + g * f(1 - b1)
        v = v * f(b2) + (g * g) * f(1 - b2)
        d = np.sqrt(v) * f(1 / math.sqrt(1 - power(b2, t))) + f(eps)
        w = w * f(1 - lr * wd) - (m / d) * f(lr / (1 - power(b1, t)))
    return w, m, v


def bits(x):
    return x.view(np.uint32)


def from_bf16(b):
    return (np.asarray(b, dtype=np.uint32) << 16).view(np.float32)
