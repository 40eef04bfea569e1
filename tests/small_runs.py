# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""A 64 x 128 BF16 parameter, ten gradients, and the run over them that tests compare with."""

import torch
from torch import nn

from nemo_sr import AdamWSR

SHAPE = (64, 128)


def bits(x):
    return x.detach().contiguous().view(torch.int16 if x.dtype == torch.bfloat16 else torch.int32)


def same(a, b):
    return torch.equal(bits(a), bits(b))


def gradients(steps=10, shape=SHAPE, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(shape, generator=generator) * 1e-2).bfloat16() for _ in range(steps)]


def initial(shape=SHAPE):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 0.02).bfloat16()


def train_whole(steps=10, name="w", **options):
    param = nn.Parameter(initial())
    optimizer = AdamWSR([(name, param)], lr=1e-3, seed=5, **options)
    for grad in gradients(steps):
        param.grad = grad.clone()
        optimizer.step()
    return param, optimizer


def cut(tensor, layout):
    block = tensor[tuple(slice(o, o + b) for o, b in zip(layout.block_offset, layout.block_shape, strict=True))]
    return block.reshape(-1)[layout.start : layout.stop]
