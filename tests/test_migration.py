# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Migration of an FP32 run and of one with FP32 masters."""

import pytest
import torch
from torch import nn

from nemo_sr import AdamWSR
from nemo_sr.migration import convert_to_sr
from nemo_sr.rounding import round_nearest


def trained():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    decayed = [p for p in model.parameters() if p.dim() == 2]
    plain = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0, "lr": 2e-2}]
    adamw = torch.optim.AdamW(groups, lr=1e-2)
    return model, adamw


def data():
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))
    return x, x.prod(1, keepdim=True).tanh()


def train(model, optimizer, steps):
    x, y = data()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model(x.to(next(model.parameters()).dtype)).float() - y).square().mean()
        loss.backward()
        optimizer.step()
    return loss.item()


@pytest.mark.parametrize("with_masters", [False, True])
def test_weights_moments_steps_and_groups_are_carried(with_masters):
    model, adamw = trained()
    before = train(model, adamw, 50)
    values = {name: param.detach().clone() for name, param in model.named_parameters()}
    moments = {name: adamw.state[param]["exp_avg_sq"].clone() for name, param in model.named_parameters()}
    masters = None
    if with_masters:
        masters = dict(model.named_parameters())
        model, _ = trained()
        model.bfloat16()
    optimizer = convert_to_sr(model, adamw, lr_scale=3.0, masters=masters, seed=9)
    names = optimizer.state_dict()["param_groups"]
    assert [group["param_names"] for group in names] == [["0.weight", "2.weight"], ["0.bias", "2.bias"]]
    assert [group["lr"] for group in names] == pytest.approx([3e-2, 6e-2])
    assert [group["weight_decay"] for group in names] == [0.1, 0.0]
    for name, param in model.named_parameters():
        assert param.dtype == torch.bfloat16
        assert torch.equal(param, round_nearest(values[name]))
        assert torch.equal(optimizer.state[param]["exp_avg_sq"], round_nearest(moments[name]))
        assert int(optimizer.state[param]["step"]) == 50
    assert train(model, optimizer, 50) < before


def test_other_optimizers_are_refused_and_the_model_left_alone():
    model, _ = trained()
    with pytest.raises(ValueError, match="must be decoupled"):
        convert_to_sr(model, torch.optim.Adam(model.parameters(), weight_decay=0.1))
    foreign = torch.optim.AdamW([*model.parameters(), nn.Parameter(torch.ones(3))])
    with pytest.raises(ValueError, match=r"1 are not, of shapes \[\(3,\)\]"):
        convert_to_sr(model, foreign)
    assert all(param.dtype == torch.float32 for param in model.parameters())


def test_fp32_masters_put_in_the_parameters_place_are_refused():
    weight = nn.Parameter(torch.ones(8, dtype=torch.bfloat16))
    optimizer = AdamWSR([("weight", weight)], lr=1e-3)
    master = weight.detach().clone().float()
    master.grad = torch.ones(8)
    optimizer.param_groups[0]["params"][0] = master
    with pytest.raises(ValueError, match=r"torch\.float32 \(8,\) is none.*NeMo 1\.x, O2.*docs/migration\.md"):
        optimizer.step()
