# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Random shapes, layouts, gradients, hyperparameters and special values: the native CPU backend against update.py."""

from math import prod

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shard_cases import assert_same_bits, bits_of_reference, copy, options, written

from nemo_sr import ShardLayout
from nemo_sr.kernels import cpu_backend
from nemo_sr.update import ParamShard, adamw_float32
from test_update import SPECIAL, assert_all_same_bits

ROUNDING = st.sampled_from(["nearest", "stochastic"])


@st.composite
def layouts(draw):
    whole = draw(st.lists(st.integers(1, 40), min_size=0, max_size=4).filter(lambda shape: prod(shape) < 20_000))
    offset = [draw(st.integers(0, size - 1)) for size in whole]
    block = [draw(st.integers(0, size - o)) for size, o in zip(whole, offset, strict=True)]
    start = draw(st.integers(0, prod(block)))
    return ShardLayout(tuple(whole), tuple(offset), tuple(block), start, draw(st.integers(start, prod(block))))


def draw_bf16(random, n, special):
    """BF16 bits over all exponents, a share of them special values; as FP32."""
    bits = random.integers(0, 65536, n, dtype=np.uint32)
    if random.random() < 0.5:  # of ordinary size, so that sums and quotients are ordinary too
        bits = (bits & 0x87FF) + 0x3800
    bits = np.where(random.random(n) < special, random.choice(SPECIAL, n), bits)
    return torch.from_numpy((bits << 16).astype(np.uint32).view(np.float32))


@st.composite
def shards(draw):
    pieces = tuple(draw(st.lists(layouts(), min_size=0, max_size=3)))
    n = sum(piece.numel for piece in pieces)
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    special = draw(st.sampled_from([0.0, 0.01, 1.0]))
    w, g, m, v = (draw_bf16(random, n, special) for _ in range(4))
    if draw(st.booleans()):
        v = v.abs()
    grad_dtype = draw(st.sampled_from([torch.bfloat16, torch.float32]))
    if grad_dtype == torch.float32:
        g = g * (1 + 2**-12)
    key = draw(st.integers(0, 2**64 - 1))
    return ParamShard(w.bfloat16(), g.to(grad_dtype), m.bfloat16(), v.bfloat16(), key, pieces)


@st.composite
def step_options(draw):
    return options(
        draw(ROUNDING),
        draw(ROUNDING),
        step=draw(st.one_of(st.integers(1, 10_000), st.integers(1, 2**33))),
        maximize=draw(st.booleans()),
        grad_scale=draw(st.one_of(st.just(1.0), st.floats(-1e3, 1e3, width=32))),
        lr=draw(st.floats(0, 1)),
        betas=(draw(st.floats(0, 0.999)), draw(st.floats(0, 0.9999))),
        eps=draw(st.sampled_from([0.0, 1e-15, 1e-8, 1e-3])),
        weight_decay=draw(st.floats(0, 1)),
    )


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shards=st.lists(shards(), max_size=4), step_options=step_options())
def test_any_step(path, shards, step_options):
    expected = bits_of_reference(shards, step_options)
    for tracing in (False, True):
        trace = [tuple(torch.empty(shard.weight.numel()) for _ in range(3)) for shard in shards]
        stepped = copy(shards)
        cpu_backend.step_on(stepped, step_options, path=path, trace=trace if tracing else None)
        assert_same_bits(written(stepped), expected)
    for shard, values in zip(shards, trace, strict=True):
        before = (shard.weight, shard.grad, shard.exp_avg, shard.exp_avg_sq)
        exact = adamw_float32(*before, step_options.scalars, maximize=step_options.maximize)
        assert_all_same_bits(values, [value.numpy() for value in exact])
