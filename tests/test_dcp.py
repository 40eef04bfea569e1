# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint's state dicts, which know parameters by name: other groups and orders, flat or not."""

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from nemo_sr import AdamWSR


def build(order=None, cuts=None, named=True):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3)).bfloat16()
    pairs = list(model.named_parameters())
    pairs = [pairs[i] for i in order or range(4)]
    members = pairs if named else [param for _, param in pairs]
    groups = [{"params": members[a:b]} for a, b in cuts or [(0, 4)]]
    return model, AdamWSR(groups, lr=1e-2, seed=2**63 + 9)


def train(model, optimizer, steps):
    for step in steps:
        for i, param in enumerate(model.parameters()):
            generator = torch.Generator().manual_seed(10 * step + i)
            param.grad = torch.randn(param.shape, generator=generator).bfloat16()
        optimizer.step()


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {}),
        ({"named": False}, {"named": False}),
        ({}, {"order": [3, 1, 0, 2]}),
        ({"cuts": [(0, 2), (2, 4)]}, {"cuts": [(0, 3), (3, 4)]}),
        ({"cuts": [(0, 2), (2, 4)]}, {"cuts": [(0, 2), (2, 4)], "order": [2, 3, 0, 1]}),
    ],
    ids=["same", "unnamed", "reordered", "regrouped", "groups exchanged"],
)
def test_states_find_their_parameters_by_name(before, after, flat):
    expected, optimizer = build(**before)
    train(expected, optimizer, range(6))
    model, optimizer = build(**before)
    train(model, optimizer, range(3))
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    state = get_optimizer_state_dict(model, optimizer, options=options)
    weights = {name: param.detach().clone() for name, param in model.named_parameters()}
    model, optimizer = build(**after)
    model.load_state_dict(weights)
    set_optimizer_state_dict(model, optimizer, state, options=options)
    assert optimizer.param_groups[0]["seed"] == 2**63 + 9
    assert all(optimizer.state[param]["step"].dtype == torch.int64 for param in model.parameters())
    train(model, optimizer, range(3, 6))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), expected.parameters(), strict=True))
