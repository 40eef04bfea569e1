# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""AdamWSR steps by the specification, with the manners of a torch.optim.Optimizer."""

import copy
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import reference
from nemo_sr import AdamW_SR_BF16, AdamWSR
from small_runs import SHAPE, gradients, initial, same, train_whole


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


def test_importing_needs_torch_alone_and_is_quick():
    code = (
        "import sys, time, torch; start = time.process_time(); import nemo_sr; "
        "others = [m for m in ('nemo', 'megatron', 'triton', 'lightning') if m in sys.modules]; "
        "print(time.process_time() - start, others)"
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


def test_temporary_memory_is_bounded_by_chunks():
    # 16M parameters: weight, gradient and moments take 128 MB; one FP32 temporary of the whole would take 64 MB more,
    # and an unchunked step needs a dozen of them.
    code = (
        "import resource, torch; from nemo_sr import AdamWSR; torch.set_num_threads(1); "
        "param = torch.nn.Parameter(torch.zeros(1 << 24, dtype=torch.bfloat16)); "
        "param.grad = torch.zeros_like(param); optimizer = AdamWSR([param], backend='reference'); "
        "optimizer.initialize_state(param); [t.fill_(1e-3) for t in optimizer.state[param].values()]; "
        "param.data.fill_(1); param.grad.fill_(1e-3); optimizer.state[param]['step'].zero_(); "
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024; "
        "before = peak(); optimizer.step(); print(peak() - before)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(result.stdout) < 120


@pytest.mark.slow
def test_a_model_compiled_by_inductor_trains():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)).bfloat16()
    compiled = torch.compile(model)
    optimizer = AdamWSR(compiled.named_parameters(), lr=1e-2)
    assert optimizer.name_of(model[0].weight) == "0.weight"
    x = torch.randn(64, 16)
    y = x.sum(1, keepdim=True)
    losses = []
    for _ in range(100):
        optimizer.zero_grad()
        loss = (compiled(x.bfloat16()).float() - y).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]
