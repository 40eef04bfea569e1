# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The rounding report against what the step then does, and the warnings of settings that stall."""

import warnings

import pytest
import torch
from torch import nn

from nemo_sr import AdamW_SR_BF16, AdamWSR


def model_after(steps, **options):
    generator = torch.Generator().manual_seed(0)
    params = [nn.Parameter((torch.randn(40, 30, generator=generator) * 0.02).bfloat16()) for _ in range(3)]
    groups = [{"params": params[:1], "lr": 1e-2}, {"params": params[1:]}]
    optimizer = AdamWSR(groups, lr=1e-5, seed=3, **options)
    for _ in range(steps):
        for param in params[:2]:
            param.grad = (torch.randn(40, 30, generator=generator) * 1e-3).bfloat16()
        optimizer.step()
    return params, optimizer


def test_the_report_is_what_the_step_does():
    params, optimizer = model_after(5)
    before = [param.detach().clone() for param in params]
    moments = [optimizer.state[param]["exp_avg_sq"].clone() for param in params[:2]]
    reports = optimizer.rounding_report()
    assert all(torch.equal(param, old) for param, old in zip(params, before, strict=True)), "a report changes nothing"
    assert reports == optimizer.rounding_report()
    optimizer.step()
    for group, param, old, moment in zip(reports, params, before, moments, strict=False):
        assert group["weight"].num_elements == 1200
        assert group["weight"].num_moved == int((param != old).sum())
        assert group["exp_avg_sq"].num_moved == int((optimizer.state[param]["exp_avg_sq"] != moment).sum())
    assert reports[0]["weight"].share_lost < 0.05, "at lr 1e-2 an update is above half an ulp of 0.02"
    assert reports[1]["weight"].share_lost > 0.6, "at lr 1e-5 it is mostly below"
    assert 0 < reports[1]["weight"].share_moved < reports[0]["weight"].share_moved


def test_lost_updates_and_ulps_by_hand():
    # Around 1.0 BF16's ulp is 2^-7: decay by 2^-10 is an eighth of an ulp of 1, and nearest loses it.
    param = nn.Parameter(torch.ones(1000, dtype=torch.bfloat16))
    param.grad = torch.zeros_like(param)
    report = AdamWSR([param], lr=2**-10, weight_decay=1.0).rounding_report()[0]["weight"]
    assert report.num_lost == report.num_changed == 1000
    assert report.mean_update_in_ulps == 2**-3
    assert 0.2 < report.share_moved < 0.3, "below 1 the ulp is 2^-8, so 2^-10 moves a quarter of the weights"


def test_a_report_before_the_first_step_and_without_gradients():
    params, optimizer = model_after(0)
    assert optimizer.rounding_report() == [{}, {}]
    assert not optimizer.state
    params[0].grad = torch.ones_like(params[0])
    assert optimizer.rounding_report()[0]["exp_avg"].num_moved == 1200
    assert not optimizer.state


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exp_avg_sq_rounding": "nearest", "betas": (0.9, 0.999)}, "exp_avg_sq is .* it never decays"),
        ({"exp_avg_sq_rounding": "nearest", "betas": (0.9, 0.99)}, r"2\^-8 / \(1 - 0.99\) = 39% short"),
        ({"betas": (0.97, 0.999)}, r"exp_avg is .* = 13% short"),
        ({"lr": 1e-6, "weight_decay": 1e-2}, "weight decay is lost: lr \\* weight_decay = 1e-08"),
    ],
)
def test_settings_that_stall_are_warned_of(options, message):
    with pytest.warns(UserWarning, match=message):
        AdamWSR([nn.Parameter(torch.ones(2).bfloat16())], **options)


def test_settings_that_do_not_stall_are_not_warned_of():
    param = nn.Parameter(torch.ones(2).bfloat16())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AdamWSR([param])
        AdamWSR([param], lr=1e-6, weight_decay=0.0)
        AdamWSR([param], lr=0.0)
        AdamW_SR_BF16([param], betas=(0.9, 0.95), exp_avg_sq_rounding="nearest")
        AdamWSR([param], betas=(0.999, 0.999), exp_avg_rounding="stochastic")
