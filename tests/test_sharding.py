# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The same bits however a parameter is sharded and whoever its neighbours are; names and bindings."""

import pytest
import torch
from torch import nn

from nemo_sr import AdamWSR, ShardLayout
from small_runs import SHAPE, cut, gradients, initial, same, train_whole

LAYOUTS = {
    "2 shards": [ShardLayout(SHAPE, (0, 0), SHAPE, a, b) for a, b in [(0, 4096), (4096, 8192)]],
    "3 uneven": [ShardLayout(SHAPE, (0, 0), SHAPE, a, b) for a, b in [(0, 1), (1, 5003), (5003, 8192)]],
    "7 uneven": [
        ShardLayout(SHAPE, (0, 0), SHAPE, a, b)
        for a, b in zip([0, 3, 11, 500, 501, 4097, 8000], [3, 11, 500, 501, 4097, 8000, 8192], strict=True)
    ],
    "rows": [ShardLayout(SHAPE, (r, 0), (32, 128), 0, 4096) for r in (0, 32)],
    "columns": [ShardLayout(SHAPE, (0, c), (64, w), 0, 64 * w) for c, w in [(0, 61), (61, 3), (64, 64)]],
    "sharded columns": [
        ShardLayout(SHAPE, (0, c), (64, 64), a, b) for c in (0, 64) for a, b in [(0, 1111), (1111, 4096)]
    ],
}


@pytest.mark.parametrize("layouts", LAYOUTS.values(), ids=LAYOUTS)
def test_shards_give_the_bits_of_the_whole(layouts):
    whole, reference_optimizer = train_whole()
    shards = [nn.Parameter(cut(initial(), layout).clone()) for layout in layouts]
    optimizer = AdamWSR(shards, lr=1e-3, seed=5)
    for shard, layout in zip(shards, layouts, strict=True):
        optimizer.bind(shard, "w", layout)
    for grad in gradients():
        for shard, layout in zip(shards, layouts, strict=True):
            shard.grad = cut(grad, layout).clone()
        optimizer.step()
    for shard, layout in zip(shards, layouts, strict=True):
        assert same(shard, cut(whole, layout))
        for moment in ("exp_avg", "exp_avg_sq"):
            assert same(optimizer.state[shard][moment], cut(reference_optimizer.state[whole][moment], layout))


def test_a_parameter_of_several_pieces_gives_the_bits_of_the_whole():
    whole, _ = train_whole()
    pieces = LAYOUTS["columns"]
    joined = nn.Parameter(torch.cat([cut(initial(), piece) for piece in pieces]))
    optimizer = AdamWSR([joined], lr=1e-3, seed=5)
    optimizer.bind(joined, "w", pieces)
    for grad in gradients():
        joined.grad = torch.cat([cut(grad, piece) for piece in pieces])
        optimizer.step()
    assert same(joined, torch.cat([cut(whole, piece) for piece in pieces]))


def test_without_the_binding_a_shard_rounds_otherwise():
    whole, _ = train_whole()
    layout = LAYOUTS["2 shards"][1]
    shard = nn.Parameter(cut(initial(), layout).clone())
    optimizer = AdamWSR([("w", shard)], lr=1e-3, seed=5)
    for grad in gradients():
        shard.grad = cut(grad, layout).clone()
        optimizer.step()
    assert not same(shard, cut(whole, layout))


def test_neighbours_draws_and_order_change_nothing():
    whole, _ = train_whole()
    param, idle, other = nn.Parameter(initial()), nn.Parameter(initial()), nn.Parameter(initial())
    groups = [{"params": [("idle", idle), ("other", other)]}, {"params": [("module.w", param)]}]
    optimizer = AdamWSR(groups, lr=1e-3, seed=5)
    for grad in gradients():
        torch.rand(7)
        other.grad, param.grad = grad.clone(), grad.clone()
        optimizer.step()
    assert same(param, whole)
    assert same(idle, initial())
    assert not same(other, whole), "equal values and gradients under another name must not share noise"


def test_bad_bindings_and_gradients_are_refused():
    a, b = nn.Parameter(initial()), nn.Parameter(initial())
    with pytest.raises(ValueError, match="two are called 'a'"):
        AdamWSR([("a", a), ("module.a", b)])
    optimizer = AdamWSR([a, b])
    a.grad = b.grad = torch.zeros_like(a)
    whole, upper = ShardLayout.whole(SHAPE), ShardLayout((128, 128), (0, 0), SHAPE, 0, 8192)
    optimizer.bind(a, "a", whole)
    optimizer.bind(b, "a", whole)
    optimizer.step()
    assert same(a, b), "copies bound alike round alike"
    with pytest.raises(RuntimeError, match="before the first step"):
        optimizer.bind(a, "other", whole)
    fresh = AdamWSR([a, b])
    fresh.bind(a, "w", whole)
    fresh.bind(b, "w", upper)
    with pytest.raises(ValueError, match="global shapes"):
        fresh.step()
    with pytest.raises(ValueError, match="as many elements"):
        fresh.bind(a, "w", ShardLayout(SHAPE, (0, 0), SHAPE, 0, 5))
    with pytest.raises(ValueError, match="parameter of this optimizer"):
        fresh.bind(nn.Parameter(initial()), "w", whole)
    sparse = nn.Embedding(4, 4, sparse=True).bfloat16()
    sparse(torch.tensor([1])).sum().backward()
    with pytest.raises(TypeError, match="must be dense"):
        AdamWSR(sparse.named_parameters()).step()


def test_names_follow_wrappers_binds_and_added_groups():
    param, added = nn.Parameter(initial()), nn.Parameter(initial())
    optimizer = AdamWSR([("_orig_mod.a._checkpoint_wrapped_module.module.b", param)])
    optimizer.add_param_group({"params": [("c", added)]})
    saved = optimizer.state_dict()
    assert [group["param_names"] for group in saved["param_groups"]] == [["a.b"], ["c"]]
    optimizer.bind(added, "d", ShardLayout.whole(SHAPE))
    assert optimizer.state_dict()["param_groups"][1]["param_names"] == ["d"]
    assert saved["param_groups"][1]["param_names"] == ["c"]
    with pytest.raises(ValueError, match=r"two are called 'a\.b'"):
        optimizer.add_param_group({"params": [("a.b", nn.Parameter(initial()))]})
    assert len(optimizer.param_groups) == 2
    unnamed = AdamWSR([param])
    unnamed.add_param_group({"params": [added]})
    assert unnamed.state_dict()["param_groups"][1]["param_names"] == ["group1.param0"]
    with pytest.raises(ValueError, match="with/without names"):
        unnamed.add_param_group({"params": [("x", nn.Parameter(initial()))]})


def test_layouts_of_one_binding_must_be_disjoint():
    param = nn.Parameter(torch.zeros(16, dtype=torch.bfloat16))
    half = ShardLayout((16,), (0,), (16,), 0, 8)
    with pytest.raises(ValueError, match="overlap"):
        AdamWSR([param]).bind(param, "w", [half, half])
    with pytest.raises(TypeError, match="a binding needs a str"):
        AdamWSR([param]).bind(param, "w", (16,))
