# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
import copy

import pytest
import torch
from omegaconf import OmegaConf

from nemo_sr.training import nearest
from nemo_sr.training.config import compose_config
from nemo_sr.training.nearest import AdamWBF16
from nemo_sr.training.optim import TorchViewOfMegatron, apply_multipliers_, mark_decoupled_

# The groups that megatron-core makes for matrices, for biases and norms, and for a decoupled embedding: 0.16 writes its
# rate as max_lr, older lines set the mark.
GROUPS = {
    "0.16": [
        {"wd_mult": 1.0, "lr_mult": 1.0, "is_decoupled_lr": False, "max_lr": 1e-3},
        {"wd_mult": 0.0, "lr_mult": 0.5, "is_decoupled_lr": False, "max_lr": 1e-3},
        {"wd_mult": 1.0, "lr_mult": 1.0, "is_decoupled_lr": False, "max_lr": 4e-3},
    ],
    "0.15": [
        {"wd_mult": 1.0, "lr_mult": 1.0, "is_decoupled_lr": False},
        {"wd_mult": 0.0, "lr_mult": 0.5, "is_decoupled_lr": False},
        {"wd_mult": 1.0, "lr_mult": 1.0, "is_decoupled_lr": True},
    ],
}


def _optim(**values):
    return OmegaConf.merge(compose_config([]).optim, {"lr": 1e-3, "decoupled_lr": 4e-3, "weight_decay": 0.1, **values})


@pytest.mark.parametrize("line", GROUPS)
def test_multipliers_are_applied_once_however_often(line):
    groups = copy.deepcopy(GROUPS[line])
    mark_decoupled_(groups, _optim())
    for _ in range(2):
        apply_multipliers_(groups, _optim())
        assert [group["weight_decay"] for group in groups] == [0.1, 0.0, 0.1]
        assert [group["initial_lr"] for group in groups] == [1e-3, 0.5e-3, 4e-3]
        assert [group["is_decoupled_lr"] for group in groups] == [False, False, True]
    # Megatron-core finds saved groups by these.
    assert [(g["wd_mult"], g["lr_mult"]) for g in groups] == [(1.0, 1.0), (0.0, 0.5), (1.0, 1.0)]


@pytest.mark.parametrize("line", GROUPS)
def test_a_resume_with_another_learning_rate_takes_it(line):
    groups = copy.deepcopy(GROUPS[line])
    mark_decoupled_(groups, _optim())
    apply_multipliers_(groups, _optim(lr=2e-3, weight_decay=0.2))
    assert [group["initial_lr"] for group in groups] == [2e-3, 1e-3, 4e-3]
    assert [group["weight_decay"] for group in groups] == [0.2, 0.0, 0.2]


class _Inner:
    """As much of a MegatronOptimizer as the view uses."""

    def __init__(self):
        self.param_groups = [{"params": [], "lr": 1.0, "initial_lr": 1.0}]
        self.num_steps = 0

    def step(self):
        self.num_steps += 1
        return True, 2.5, None

    def zero_grad(self, set_to_none):
        pass


def test_a_scheduler_acts_on_megatrons_groups_after_they_were_exchanged():
    inner = _Inner()
    view = TorchViewOfMegatron(inner)
    scheduler = torch.optim.lr_scheduler.LambdaLR(view, lambda step: 1.0 / (1 + step))
    view.step()
    assert (inner.num_steps, view.grad_norm) == (1, 2.5)
    inner.param_groups = copy.deepcopy(inner.param_groups)  # what load_state_dict does
    scheduler.step()
    assert inner.param_groups[0]["lr"] == 0.5


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
