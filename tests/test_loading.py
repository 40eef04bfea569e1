# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""state_dict and load_state_dict: a resume gives the same bits, and what does not fit changes nothing."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from nemo_sr import AdamWSR
from small_runs import gradients, initial, same, train_whole


@pytest.mark.parametrize("transfer", ["state_dict", "saved", "pickle", "deepcopy"])
def test_a_resumed_run_gives_the_bits_of_an_uninterrupted_one(transfer):
    whole, _ = train_whole()
    half, optimizer = train_whole(steps=5)
    if transfer == "pickle":
        half, optimizer = pickle.loads(pickle.dumps((half, optimizer)))
    elif transfer == "deepcopy":
        half, optimizer = copy.deepcopy((half, optimizer))
    else:
        state = optimizer.state_dict()
        if transfer == "saved":
            file = io.BytesIO()
            torch.save(state, file)
            file.seek(0)
            state = torch.load(file, weights_only=True)
        half = nn.Parameter(half.detach().clone())
        optimizer = AdamWSR([("w", half)], lr=9.0, seed=2**64 - 1)
        optimizer.load_state_dict(state)
        optimizer.load_state_dict(state)
        assert optimizer.param_groups[0]["seed"] == 5
        assert optimizer.state[half]["step"].dtype == torch.int64
        assert optimizer.state[half]["exp_avg"].data_ptr() != state["state"][0]["exp_avg"].data_ptr()
    for grad in gradients()[5:]:
        half.grad = grad.clone()
        optimizer.step()
    assert same(half, whole)


def test_loading_refuses_other_names_unless_renamed():
    _, optimizer = train_whole(steps=2)
    state = optimizer.state_dict()
    other = AdamWSR([("v", nn.Parameter(initial()))])
    with pytest.raises(ValueError, match="saved 'w', present 'v'"):
        other.load_state_dict(state)
    assert not other.state
    assert other.param_groups[0]["seed"] == 0
    other.load_state_dict(state, rename={"w": "v"})
    assert other.state_dict()["param_groups"][0]["param_names"] == ["v"]
    with pytest.raises(ValueError, match=r"\['x'\] are not among the saved names"):
        other.load_state_dict(state, rename={"w": "v", "x": "y"})


def test_loading_refuses_another_noise_version_and_other_shapes():
    _, optimizer = train_whole(steps=1)
    state = optimizer.state_dict()
    small = AdamWSR([("w", nn.Parameter(torch.ones(3).bfloat16()))])
    with pytest.raises(ValueError, match="must have the parameter's shape"):
        small.load_state_dict(state)
    state["param_groups"][0]["noise_version"] = 2
    with pytest.raises(ValueError, match="noise version 1; got version 2"):
        optimizer.load_state_dict(state)


def test_torch_adamw_state_loads_with_a_warning():
    model = nn.Parameter(initial().float())
    adamw = torch.optim.AdamW([model], lr=1e-3)
    model.grad = gradients(1)[0].float()
    adamw.step()
    param = nn.Parameter(initial())
    optimizer = AdamWSR([param])
    with pytest.warns(UserWarning, match="rounded to nearest"):
        optimizer.load_state_dict(adamw.state_dict())
    assert optimizer.state[param]["exp_avg"].dtype == torch.bfloat16
    assert int(optimizer.state[param]["step"]) == 1
    param.grad = gradients(1)[0]
    optimizer.step()


def test_a_loaded_state_that_does_not_fit_changes_nothing():
    _, optimizer = train_whole(steps=2)
    for key, value, message in [("seed", -1, "seed"), ("lr", -1.0, "lr"), ("betas", (0.9, 1.5), "betas")]:
        state = copy.deepcopy(optimizer.state_dict())
        state["param_groups"][0][key] = value
        other = AdamWSR([("w", nn.Parameter(initial()))], lr=0.25)
        with pytest.raises(ValueError, match=message):
            other.load_state_dict(state)
        assert not other.state
        assert other.param_groups[0]["lr"] == 0.25
        assert other.param_groups[0]["seed"] == 0
    groups = optimizer.state_dict()["param_groups"]
    for broken in ({}, {"state": {0: {"momentum_buffer": torch.ones(3)}}, "param_groups": groups}):
        with pytest.raises(ValueError, match="saved"):
            optimizer.load_state_dict(broken)


def test_loading_from_adamw_keeps_the_options_that_it_does_not_have():
    param = nn.Parameter(initial())
    adamw = torch.optim.AdamW([nn.Parameter(initial())], lr=0.5, fused=True)
    optimizer = AdamWSR([{"params": [param], "seed": 7, "exp_avg_rounding": "stochastic"}])
    optimizer.load_state_dict(adamw.state_dict())
    group = optimizer.param_groups[0]
    assert (group["lr"], group["seed"], group["exp_avg_rounding"]) == (0.5, 7, "stochastic")
    assert "fused" not in group
    l2 = torch.optim.Adam([nn.Parameter(initial())], weight_decay=0.1)
    if "decoupled_weight_decay" in l2.defaults:  # torch 2.6 does not write which of the two it is
        with pytest.raises(ValueError, match="decay is decoupled"):
            optimizer.load_state_dict(l2.state_dict())
    with pytest.raises(ValueError, match="no AMSGrad"):
        optimizer.load_state_dict(torch.optim.AdamW([nn.Parameter(initial())], amsgrad=True).state_dict())


def test_hooks_of_loading_see_and_change_the_whole_state():
    _, optimizer = train_whole(steps=2)
    param = nn.Parameter(initial())
    other = AdamWSR([("w", param)])
    seen = []

    def edit(_, state_dict):
        state_dict["state"][0]["step"] = torch.tensor(77)

    other.register_load_state_dict_pre_hook(edit)
    other.register_load_state_dict_post_hook(lambda loaded: seen.append(int(loaded.state[param]["step"])))
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert seen == [77]
