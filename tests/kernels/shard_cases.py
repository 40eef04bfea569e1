# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Shards to step, and the comparison of two backends' bits."""

import dataclasses

import torch

from nemo_sr import ShardLayout
from nemo_sr.noise import noise_key
from nemo_sr.update import ParamShard, StepOptions, StepScalars, adamw_sr_

LAYOUTS = {
    "whole": (ShardLayout.whole((37, 64)),),
    "scalar": (ShardLayout.whole(()),),
    "empty": (ShardLayout.whole((0, 5)),),
    "odd": (ShardLayout.whole((1003,)),),
    "row block": (ShardLayout((64, 96), (16, 0), (16, 96), 0, 16 * 96),),
    "column block": (ShardLayout((64, 256), (0, 64), (64, 64), 0, 64 * 64),),
    "odd columns": (ShardLayout((100, 60), (20, 3), (60, 57), 11, 3000),),
    "cut anywhere": (ShardLayout((64, 256), (0, 0), (64, 256), 1237, 9876),),
    "short rows": (ShardLayout((700, 5), (3, 1), (600, 3), 1, 1799),),
    "four dimensions": (ShardLayout((4, 5, 6, 7), (1, 1, 1, 1), (3, 3, 4, 5), 7, 170),),
    "two pieces": (ShardLayout((64, 96), (8, 0), (8, 96), 5, 700), ShardLayout((64, 96), (40, 0), (8, 96), 5, 700)),
    # The kernels count blocks of eight elements in 32 bits.
    "far away": (ShardLayout((2**37,), (2**35 - 1000,), (2000,), 3, 1999),),
}


def options(*roundings, step=7, maximize=False, grad_scale=0.37, **hyperparameters):
    chosen = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1} | hyperparameters
    scalars = StepScalars.of_step(step, grad_scale=grad_scale, **chosen)
    return StepOptions(step, scalars, *(roundings or ("nearest", "stochastic")), maximize=maximize)


def make_shard(layouts, *, seed=0, dtype=torch.bfloat16, grad_dtype=torch.bfloat16):
    n = sum(layout.numel for layout in layouts)
    generator = torch.Generator().manual_seed(seed)
    w, g, m, v = (torch.randn(n, generator=generator) * scale for scale in (0.02, 1e-3, 1e-3, 1e-3))
    return ParamShard(
        w.to(dtype), g.to(grad_dtype), m.to(dtype), v.square().to(dtype), noise_key(seed, f"parameter {seed}"), layouts
    )


def written(shards):
    """The bits that a step has written."""
    return [
        tensor.view(torch.int16).clone()
        for shard in shards
        for tensor in (shard.weight, shard.exp_avg, shard.exp_avg_sq)
    ]


def copy(shards):
    return [
        dataclasses.replace(
            shard, weight=shard.weight.clone(), exp_avg=shard.exp_avg.clone(), exp_avg_sq=shard.exp_avg_sq.clone()
        )
        for shard in shards
    ]


def bits_of_reference(shards, step_options):
    stepped = copy(shards)
    adamw_sr_(stepped, step_options)
    return written(stepped)


def assert_same_bits(result, expected):
    assert len(result) == len(expected)
    for number, (one, other) in enumerate(zip(result, expected, strict=True)):
        differ = int((one != other).sum())
        name = ("weight", "exp_avg", "exp_avg_sq")[number % 3]
        assert differ == 0, f"{differ} of {one.numel()} differ in {name} of shard {number // 3}"
