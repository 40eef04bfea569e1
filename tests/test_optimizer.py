# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""AdamWSR as an optimizer: the same bits however it is sharded and whoever its neighbours are, and torch's manners."""

import copy
import io
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import reference
from nemo_sr import AdamW_SR_BF16, AdamWSR, ShardLayout

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


@pytest.mark.parametrize("moment_rounding", ["nearest", "stochastic"])
def test_steps_follow_the_independent_model(moment_rounding):
    param, optimizer = train_whole(steps=3, exp_avg_rounding=moment_rounding)
    w = initial().float().numpy().reshape(-1)
    m = v = np.zeros_like(w)
    for t, grad in enumerate(gradients(3), start=1):
        g = grad.float().numpy().reshape(-1)
        values = reference.step_float32(w, g, m, v, t, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, wd=1e-2)
        rounded = []
        for stream, value in enumerate(values):
            x = reference.bits(value).tolist()
            if stream == 1 and moment_rounding == "nearest":
                rounded.append(reference.from_bf16([reference.nearest(b) for b in x]))
            else:
                noise = [reference.noise(5, t, stream, "w", e) for e in range(len(x))]
                rounded.append(reference.from_bf16([reference.stochastic(b, n) for b, n in zip(x, noise, strict=True)]))
        w, m, v = rounded
    assert np.array_equal(param.detach().float().numpy().reshape(-1), w)
    assert np.array_equal(optimizer.state[param]["exp_avg"].float().numpy().reshape(-1), m)
    assert np.array_equal(optimizer.state[param]["exp_avg_sq"].float().numpy().reshape(-1), v)


def test_the_step_is_per_parameter_int64_and_exact():
    torch.set_default_dtype(torch.bfloat16)
    try:
        a, b = nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(8))
        optimizer = AdamWSR([a, b])
        for start in (256, 2**24, 2**31):
            a.grad = torch.ones(8)
            optimizer.step()
            optimizer.state[a]["step"].fill_(start)
            optimizer.step()
            assert int(optimizer.state[a]["step"]) == start + 1
            assert optimizer.param_groups[0]["step"] == start + 1
        assert optimizer.state[a]["step"].dtype == torch.int64
        assert b not in optimizer.state
    finally:
        torch.set_default_dtype(torch.float32)


def test_grad_scale_acts_once_and_equals_a_scaled_fp32_gradient():
    param, scaled = nn.Parameter(initial()), nn.Parameter(initial())
    one, two = AdamWSR([("w", param)]), AdamWSR([("w", scaled)])
    for grad in gradients(3):
        param.decoupled_grad = grad.float() * np.float32(0.3)
        param.grad = torch.full_like(grad, 1e9)  # decoupled_grad wins
        one.step()
        scaled.grad = grad.clone()
        two.grad_scale = 0.3
        two.step()
        assert two.grad_scale == 1.0
    assert same(param, scaled)


def test_non_contiguous_empty_and_scalar_parameters():
    whole, reference_optimizer = train_whole()
    transposed = nn.Parameter(initial().t().contiguous().t())
    empty, scalar = nn.Parameter(torch.empty(0, 3, dtype=torch.bfloat16)), nn.Parameter(torch.ones(()).bfloat16())
    assert not transposed.is_contiguous()
    optimizer = AdamWSR([("w", transposed), ("e", empty), ("s", scalar)], lr=1e-3, seed=5)
    for grad in gradients():
        transposed.grad = grad.clone()
        empty.grad, scalar.grad = torch.empty_like(empty), torch.ones_like(scalar)
        optimizer.step()
    assert same(transposed, whole)
    assert same(optimizer.state[transposed]["exp_avg_sq"], reference_optimizer.state[whole]["exp_avg_sq"])


def test_fp32_parameters_beside_bf16_ones_take_plain_adamw():
    param = nn.Parameter(initial().float())
    optimizer = AdamWSR([("w", param)], lr=1e-3, fp32_params="plain")
    w = param.detach().clone().numpy()
    m = v = np.zeros_like(w)
    for t, grad in enumerate(gradients(3), start=1):
        param.grad = grad.float()
        optimizer.step()
        w, m, v = reference.step_float32(
            w, grad.float().numpy(), m, v, t, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, wd=1e-2
        )
    assert np.array_equal(param.detach().numpy(), w)
    assert optimizer.state[param]["exp_avg"].dtype == torch.float32


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


def test_schedulers_closures_and_tensor_lr():
    param = nn.Parameter(initial())
    optimizer = AdamWSR([param], lr=torch.tensor(1e-3))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)

    def closure():
        optimizer.zero_grad()
        loss = (param.float() ** 2).sum()
        loss.backward()
        return loss

    losses = []
    for _ in range(10):
        losses.append(float(optimizer.step(closure)))
        scheduler.step()
    assert losses[-1] < losses[0]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.linear = nn.Linear(4, 4).bfloat16()


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: AdamWSR(Model().named_parameters()), TypeError, "'norm.weight' is torch.float32.*fp32_params"),
        (lambda: AdamW_SR_BF16(Model().named_parameters()), TypeError, "AdamW_SR_BF16 needs bfloat16.*'norm.weight'"),
        (lambda: AdamW_SR_BF16([], fp32_params="plain"), ValueError, "always refuses"),
        (lambda: AdamWSR([nn.Parameter(torch.ones(2).half())], fp32_params="plain"), TypeError, "float16"),
        (lambda: AdamWSR([nn.Parameter(initial())], lr=-1.0), ValueError, "lr must be"),
        (lambda: AdamWSR([nn.Parameter(initial())], betas=(0.9, 1.0)), ValueError, "betas must be"),
        (lambda: AdamWSR([nn.Parameter(initial())], eps=-1e-8), ValueError, "eps must be"),
        (lambda: AdamWSR([nn.Parameter(initial())], weight_decay=float("nan")), ValueError, "weight_decay must be"),
        (lambda: AdamWSR([nn.Parameter(initial())], seed=2**64), ValueError, "seed must be"),
        (lambda: AdamWSR([nn.Parameter(initial())], seed=-1), ValueError, "seed must be"),
        (lambda: AdamWSR([nn.Parameter(initial())], exp_avg_rounding="up"), ValueError, "exp_avg_rounding must be"),
        (lambda: AdamWSR([nn.Parameter(initial())], fp32_params="cast"), ValueError, "fp32_params must be"),
        (lambda: AdamWSR([nn.Parameter(initial())], backend="gpu"), ValueError, "backend must be one of"),
        (lambda: AdamWSR([nn.Parameter(initial())], backend="triton"), RuntimeError, "no triton kernel"),
        (lambda: AdamWSR([nn.Parameter(initial())], capturable=True), ValueError, "capturable=True needs"),
        (lambda: AdamWSR([nn.Parameter(initial())], eps="1e-8"), TypeError, "eps must be a number; got '1e-8'"),
        (lambda: AdamWSR([nn.Parameter(initial())], lr=None), TypeError, "lr must be a number"),
        (lambda: AdamWSR([nn.Parameter(initial())], lr=torch.ones(2)), ValueError, "one-element tensor"),
        (lambda: AdamWSR([nn.Parameter(initial())], betas=0.9), TypeError, "betas must be two numbers"),
        (lambda: AdamWSR([{"params": [nn.Parameter(initial())], "backend": "cpu"}]), ValueError, "whole optimizer"),
        (lambda: AdamWSR([{"params": [nn.Parameter(initial())], "noise_version": 2}]), ValueError, "noise version 1"),
    ],
)
def test_bad_arguments_are_refused(build, error, message):
    with pytest.raises(error, match=message):
        build()


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


def test_importing_needs_torch_alone_and_is_quick():
    code = (
        "import sys, time, torch; start = time.perf_counter(); import nemo_sr; "
        "others = [m for m in ('nemo', 'megatron', 'triton', 'lightning') if m in sys.modules]; "
        "print(time.perf_counter() - start, others)"
    )
    seconds, modules = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split(maxsplit=1)
    assert modules.strip() == "[]"
    assert float(seconds) < 0.3


def test_groups_step_with_their_own_options():
    options = [{"lr": 1e-2, "betas": (0.5, 0.7), "eps": 1e-3, "weight_decay": 0.3, "seed": 3}, {"lr": 1e-3}]
    together = [nn.Parameter(initial()) for _ in options]
    groups = [{"params": [(f"p{i}", p)], **o} for i, (p, o) in enumerate(zip(together, options, strict=True))]
    one = AdamWSR(groups)
    alone = [nn.Parameter(initial()) for _ in options]
    many = [AdamWSR([(f"p{i}", p)], **o) for i, (p, o) in enumerate(zip(alone, options, strict=True))]
    for grad in gradients(5):
        for param in together + alone:
            param.grad = grad.clone()
        one.step()
        for optimizer in many:
            optimizer.step()
    assert all(same(a, b) for a, b in zip(together, alone, strict=True))


def test_parameters_of_a_group_that_miss_gradients_keep_their_own_step():
    late, alone = nn.Parameter(initial()), nn.Parameter(initial())
    other = nn.Parameter(initial())
    optimizer, single = AdamWSR([("w", late), ("o", other)]), AdamWSR([("w", alone)])
    for number, grad in enumerate(gradients(6)):
        other.grad = grad.clone()
        if number >= 3:
            late.grad, alone.grad = grad.clone(), grad.clone()
            single.step()
        optimizer.step()
    assert same(late, alone)
    assert optimizer.param_groups[0]["step"] == 6


@pytest.mark.parametrize(
    "betas", [(np.float32(0.9), np.float32(0.999)), torch.tensor([0.9, 0.999]).unbind(), [0.9, 0.999]]
)
def test_scalars_are_computed_in_fp64_whatever_type_the_betas_have(betas):
    param, expected = nn.Parameter(initial()), nn.Parameter(initial())
    one, two = AdamWSR([("w", param)], betas=betas), AdamWSR([("w", expected)], betas=tuple(float(b) for b in betas))
    assert all(type(beta) is float for beta in one.param_groups[0]["betas"])
    for grad in gradients(3):
        param.grad, expected.grad = grad.clone(), grad.clone()
        one.step()
        two.step()
    assert same(param, expected)
    assert same(one.state[param]["exp_avg_sq"], two.state[expected]["exp_avg_sq"])


def test_maximize_steps_as_if_the_gradient_were_negated():
    up, down = nn.Parameter(initial()), nn.Parameter(initial())
    one, two = AdamWSR([("w", up)], maximize=True), AdamWSR([("w", down)])
    for grad in gradients(3):
        up.grad, down.grad = grad.clone(), -grad
        one.step()
        two.step()
    assert same(up, down)


@pytest.mark.parametrize("fault", ["betas", "grad dtype", "grad_scale", "parameter dtype", "moment dtype", "closure"])
def test_a_step_that_fails_changes_nothing(fault):
    first, second = nn.Parameter(initial()), nn.Parameter(initial())
    optimizer = AdamWSR([{"params": [first]}, {"params": [second]}])
    for param in (first, second):
        param.grad = gradients(1)[0].clone()
    optimizer.step()
    before = copy.deepcopy((first, second, optimizer.state_dict()))
    optimizer.grad_scale = 0.5
    closure = None
    if fault == "betas":
        optimizer.param_groups[1]["betas"] = (0.9, 1.0)
    elif fault == "grad dtype":
        second.decoupled_grad = torch.zeros(SHAPE, dtype=torch.float64)
    elif fault == "grad_scale":
        optimizer.grad_scale = torch.ones(1)
    elif fault == "parameter dtype":
        second.data = second.data.double()
        second.decoupled_grad = torch.zeros(SHAPE)
    elif fault == "moment dtype":
        optimizer.state[second]["exp_avg"] = torch.zeros(SHAPE)
    else:
        closure = pytest.fail
    with pytest.raises((TypeError, ValueError, pytest.fail.Exception)):
        optimizer.step(closure)
    assert same(first, before[0])
    assert [int(optimizer.state[p]["step"]) for p in (first, second)] == [1, 1]
    assert same(optimizer.state[first]["exp_avg"], before[2]["state"][0]["exp_avg"])


def test_a_model_cast_to_fp32_after_construction_is_refused():
    model = nn.Linear(3, 3).bfloat16()
    optimizer = AdamW_SR_BF16(model.named_parameters())
    model.float()
    model.weight.grad = torch.zeros(3, 3)
    with pytest.raises(TypeError, match=r"'weight' is torch\.float32"):
        optimizer.step()


def test_zero_grad_clears_decoupled_gradients():
    param = nn.Parameter(initial())
    optimizer = AdamWSR([param])
    param.decoupled_grad = torch.ones(SHAPE)
    optimizer.zero_grad(set_to_none=False)
    assert int(param.decoupled_grad.count_nonzero()) == 0
    optimizer.zero_grad()
    assert param.decoupled_grad is None


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


def test_a_compiled_training_step_gives_the_same_bits():
    def train(compiled):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 5), nn.Linear(5, 3)).bfloat16()
        optimizer = AdamWSR(model.named_parameters(), lr=1e-2)
        x = torch.randn(4, 8).bfloat16()

        def step():
            optimizer.zero_grad()
            model(x).float().square().sum().backward()
            optimizer.step()

        run = torch.compile(step, backend="eager") if compiled else step
        for _ in range(4):
            run()
        return torch.cat([param.detach().flatten() for param in model.parameters()])

    assert same(train(compiled=True), train(compiled=False))
