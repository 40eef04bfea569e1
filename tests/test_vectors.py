# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The published test vectors: equal to the independent model, and met by the package."""

import json

import pytest
import torch

import make_vectors
from nemo_sr import AdamWSR, noise16
from nemo_sr.update import StepScalars, adamw_float32

VECTORS = json.loads(make_vectors.TARGET.read_text(encoding="utf-8"))


def bf16(column):
    return torch.tensor([int(b, 16) for b in column], dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


def hexadecimal(x, digits):
    dtype = torch.int16 if digits == 4 else torch.int32
    mask = (1 << 4 * digits) - 1
    return [f"{b & mask:0{digits}x}" for b in x.detach().view(dtype).tolist()]


def test_the_file_is_what_the_independent_model_gives():
    assert json.loads(json.dumps(make_vectors.vectors())) == VECTORS


def test_noise():
    for v in VECTORS["noise"]:
        noise = noise16(int(v["seed"]), v["step"], v["stream"], v["name"], torch.tensor([v["index"]]))
        assert f"{int(noise):04x}" == v["noise"], v


@pytest.mark.parametrize("v", VECTORS["steps"], ids=lambda v: f"step {v['step']} {v['exp_avg_rounding']}")
def test_steps(v):
    options = {name: v[name] for name in ("lr", "betas", "eps", "weight_decay")}
    tensors = [bf16(v["before"][name]) for name in ("weight", "grad", "exp_avg", "exp_avg_sq")]
    scalars = StepScalars.of_step(v["step"], grad_scale=v["grad_scale"], **options)
    values = adamw_float32(*tensors, scalars, maximize=v["maximize"])
    for name, value in zip(("weight", "exp_avg", "exp_avg_sq"), values, strict=True):
        bits = hexadecimal(value, 8)
        assert ["nan" if x != x else b for x, b in zip(value.tolist(), bits, strict=True)] == v["float32"][name]
    param = torch.nn.Parameter(tensors[0].clone())
    roundings = {name: v[name] for name in ("exp_avg_rounding", "exp_avg_sq_rounding", "maximize")}
    optimizer = AdamWSR([(v["name"], param)], seed=int(v["seed"]), **options, **roundings)
    optimizer.initialize_state(param)
    state = optimizer.state[param]
    state["step"].fill_(v["step"] - 1)
    state["exp_avg"].copy_(tensors[2])
    state["exp_avg_sq"].copy_(tensors[3])
    param.grad = tensors[1]
    optimizer.grad_scale = v["grad_scale"]
    optimizer.step()
    result = {"weight": param, "exp_avg": state["exp_avg"], "exp_avg_sq": state["exp_avg_sq"]}
    assert {name: hexadecimal(x, 4) for name, x in result.items()} == v["after"]
