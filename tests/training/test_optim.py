# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
import copy

import pytest
import torch
from nemo.core.optim import prepare_lr_scheduler
from omegaconf import OmegaConf

from nemo_sr.training import nearest
from nemo_sr.training.config import compose_config
from nemo_sr.training.nearest import AdamWBF16
from nemo_sr.training.optim import TorchViewOfMegatron, mark_decoupled_, set_rates_
from nemo_sr.training.regimes import scaled_rates
from nemo_sr.training.values import SCHEDULES

# The groups that megatron-core makes for matrices, for biases and norms, and for a decoupled embedding: 0.16 writes its
# rate as max_lr, older lines set the mark.
GROUPS = {
    "0.16": [
        {"wd_mult": 1.0, "lr_mult": 1.0, "is_decoupled_lr": False, "max_lr": 1e-3, "default_config": True},
        {"wd_mult": 0.0, "lr_mult": 0.5, "is_decoupled_lr": False, "max_lr": 1e-3, "default_config": True},
        {"wd_mult": 1.0, "lr_mult": 1.0, "is_decoupled_lr": False, "max_lr": 4e-3, "default_config": False},
    ],
    "0.15": [
        {"wd_mult": 1.0, "lr_mult": 1.0, "is_decoupled_lr": False},
        {"wd_mult": 0.0, "lr_mult": 0.5, "is_decoupled_lr": False},
        {"wd_mult": 1.0, "lr_mult": 1.0, "is_decoupled_lr": True},
    ],
}


def _optim(**values):
    return OmegaConf.merge(compose_config([]).optim, {"lr": 1e-3, "weight_decay": 0.125, **values})


def _rates(groups, optim, lr):
    set_rates_(groups, optim, lr)
    return [group["lr"] for group in groups]


@pytest.mark.parametrize("line", GROUPS)
def test_rates_are_the_same_however_often_they_are_set(line):
    groups = copy.deepcopy(GROUPS[line])
    for _ in range(2):
        mark_decoupled_(groups)
        assert _rates(groups, _optim(decoupled_lr=4e-3), 5e-4) == [5e-4, 2.5e-4, 2e-3]
        assert [group["weight_decay"] for group in groups] == [0.125, 0.0, 0.125]
        assert [group["is_decoupled_lr"] for group in groups] == [False, False, True]
    # Megatron-core finds saved groups by these.
    assert [(g["wd_mult"], g["lr_mult"]) for g in groups] == [(1.0, 1.0), (0.0, 0.5), (1.0, 1.0)]
    # A resumed run may change or drop the decoupled rate.
    assert _rates(groups, _optim(decoupled_lr=8e-3), 5e-4) == [5e-4, 2.5e-4, 4e-3]
    assert _rates(groups, _optim(weight_decay=0.25), 5e-4) == [5e-4, 2.5e-4, 5e-4]
    assert [group["weight_decay"] for group in groups] == [0.25, 0.0, 0.25]


def test_a_decoupled_minimum_is_reached_with_the_schedules():
    groups = copy.deepcopy(GROUPS["0.16"])[2:]
    mark_decoupled_(groups)
    optim = _optim(decoupled_lr=4e-3, decoupled_min_lr=1e-3, sched={"min_lr": 1e-4})
    # Warm-up from 0, the top, half way down, the minimum.
    found = [_rates(groups, optim, lr)[0] for lr in (0.0, 5e-5, 1e-3, 5.5e-4, 1e-4)]
    assert found == pytest.approx([0.0, 5e-4, 4e-3, 2.5e-3, 1e-3], rel=1e-12)
    assert _rates(groups, _optim(decoupled_lr=4e-3, decoupled_min_lr=1e-3, sched={"min_lr": 0.0}), 0.0) == [1e-3]


class _Inner:
    """As much of a MegatronOptimizer as the view uses."""

    def __init__(self):
        self.param_groups = copy.deepcopy(GROUPS["0.16"])
        self.rates = []

    def step(self):
        self.rates.append([group["lr"] for group in self.param_groups])
        return True, 2.5, None

    def zero_grad(self, set_to_none):
        pass


@pytest.mark.parametrize(
    "sched", [*({"name": name} for name in SCHEDULES), {"name": "CosineAnnealing", "constant_steps": 2}], ids=str
)
def test_every_schedule_moves_all_groups_in_proportion(sched):
    inner = _Inner()
    view = TorchViewOfMegatron(inner, _optim(decoupled_lr=4e-3, sched={"min_lr": 1e-4}))
    scheduler = prepare_lr_scheduler(view, {**sched, "warmup_steps": 3, "min_lr": 1e-4, "max_steps": 10})["scheduler"]
    scheduled = []
    for step in range(10):
        scheduled.append(view.param_groups[0]["lr"])
        view.step()
        if step == 4:  # what a load does to the groups
            inner.param_groups = copy.deepcopy(inner.param_groups)
            for group in inner.param_groups:
                group["lr"] = group["weight_decay"] = 7.0
        scheduler.step()
    assert view.grad_norm == 2.5
    assert max(scheduled) <= 1e-3
    assert len(set(scheduled)) > 3
    assert inner.rates == [[lr, lr * 0.5, lr * 4.0] for lr in scheduled]


def test_the_bf16_baseline_steps_in_pieces_and_refuses_flushed_subnormals(monkeypatch):
    def step():
        generator = torch.Generator().manual_seed(0)
        weight = torch.nn.Parameter(torch.randn(1000, generator=generator).bfloat16())
        optimizer = AdamWBF16([("w", weight)], lr=0.1)
        weight.grad = torch.randn(1000, generator=generator).bfloat16()
        optimizer.step()
        return weight.detach()

    sizes = []
    whole = nearest.adamw_float32
    expected = step()
    monkeypatch.setattr(nearest, "CHUNK", 300)
    monkeypatch.setattr(nearest, "adamw_float32", lambda w, *a, **k: sizes.append(len(w)) or whole(w, *a, **k))
    assert torch.equal(step(), expected)
    assert sizes == [300, 300, 300, 100]
    torch.set_flush_denormal(True)
    try:
        with pytest.raises(RuntimeError, match="flushes subnormal numbers"):
            step()
    finally:
        torch.set_flush_denormal(False)


def test_the_bf16_baseline_loses_small_updates_and_sr_does_not():
    from nemo_sr import AdamWSR

    moved = {}
    for cls in (AdamWBF16, AdamWSR):
        weight = torch.nn.Parameter(torch.ones(4096, dtype=torch.bfloat16))
        optimizer = cls([("w", weight)], lr=2.0**-12, weight_decay=0.0)
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        moved[cls] = int((weight != 1).sum())
    # A step of 2^-12 is a sixteenth of the spacing below 1: 256 of 4096 in the mean, standard error 15.5.
    assert moved[AdamWBF16] == 0
    assert 256 - 5 * 15.5 < moved[AdamWSR] < 256 + 5 * 15.5


@pytest.mark.parametrize(
    ("name", "scale"), [("adamw_sr", 3.0), ("adamw", 1.0), ("adamw_bf16", 1.0), ("adamw_amp", 1.0)]
)
def test_only_adamw_sr_scales_the_highest_rates_and_never_the_lowest(name, scale):
    optim = _optim(name=name, sr_lr_scale=3.0, decoupled_lr=4e-3, sched={"min_lr": 1e-4})
    assert scaled_rates(optim) == pytest.approx((scale * 1e-3, scale * 4e-3))
    groups = copy.deepcopy(GROUPS["0.15"])
    assert _rates(groups, optim, scale * 1e-3)[2] == pytest.approx(scale * 4e-3)
    optim.decoupled_min_lr = 2e-4
    assert _rates(groups, optim, 1e-4)[2] == pytest.approx(2e-4)
