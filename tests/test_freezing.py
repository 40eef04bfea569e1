# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Nothing freezes: small updates, weight decay and moments move as in FP32, where rounding to nearest stops them."""

import math

import pytest
import torch
from torch import nn

from nemo_sr import AdamWSR

N = 4096


def ones(dtype=torch.bfloat16):
    return nn.Parameter(torch.ones(N, dtype=dtype))


def run(param, optimizer, gradient, steps):
    for _ in range(steps):
        param.grad = torch.full_like(param, gradient)
        optimizer.step()


def test_decay_of_ones_without_gradient():
    # lr*wd = 1e-5 a step is 1/195 of half an ulp below 1; the mean's standard error is below 1e-4.
    param = ones()
    run(param, AdamWSR([param], lr=1e-4, weight_decay=0.1, seed=1), 0.0, 1000)
    assert abs(param.detach().double().mean().item() - math.exp(-0.01)) < 5e-4


def test_rounding_to_nearest_would_keep_the_ones():
    weight = torch.ones(N, dtype=torch.bfloat16)
    for _ in range(1000):
        weight = (weight.float() * (1 - 1e-5)).bfloat16()
    assert bool((weight == 1).all())


@pytest.mark.parametrize("gradient", [1e-4, 3.3e-3, -2e-2])
@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
def test_a_constant_tiny_gradient_moves_the_mean_as_fp32_does(rounding, gradient):
    param, exact = ones(), ones(torch.float32)
    options = {"lr": 1e-4, "weight_decay": 0.0, "betas": (0.9, 0.999)}
    run(param, AdamWSR([param], exp_avg_rounding=rounding, seed=2, **options), gradient, 500)
    run(exact, AdamWSR([exact], fp32_params="plain", **options), float(torch.tensor(gradient).bfloat16()), 500)
    weights = param.detach().double()
    error = abs(weights.mean().item() - exact.detach().double().mean().item())
    move = abs(1 - exact.detach().double().mean().item())
    assert move > 0.045
    # Five standard errors: false alarm 6e-7 for each case.
    standard_error = weights.std().item() / math.sqrt(N)
    assert error < (5 * standard_error if rounding == "stochastic" else 0.03 * move)


@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
def test_the_second_moment_decays_unless_it_is_rounded_to_nearest(rounding):
    param = ones()
    with pytest.warns(UserWarning, match="never decays") if rounding == "nearest" else torch.no_grad():
        optimizer = AdamWSR([param], lr=1e-6, betas=(0.9, 0.999), exp_avg_sq_rounding=rounding, seed=3)
    run(param, optimizer, 1e-2, 200)
    before = optimizer.state[param]["exp_avg_sq"].double().mean().item()
    run(param, optimizer, 0.0, 1000)
    ratio = optimizer.state[param]["exp_avg_sq"].double().mean().item() / before
    if rounding == "stochastic":
        assert abs(ratio - 0.999**1000) < 0.0025
    else:
        assert ratio == 1.0


def test_large_betas_differ():
    moments = []
    for beta2 in (0.999, 0.9999):
        param = ones()
        optimizer = AdamWSR([param], betas=(0.9, beta2), seed=4)
        run(param, optimizer, 1e-2, 50)
        moments.append(optimizer.state[param]["exp_avg_sq"].double().mean().item())
    # (1 - 0.999^50) / (1 - 0.9999^50) = 9.78; the mean of 4096 roundings is exact to a per mille.
    assert abs(moments[0] / moments[1] - (1 - 0.999**50) / (1 - 0.9999**50)) < 0.1
