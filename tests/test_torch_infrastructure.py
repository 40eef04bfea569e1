# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""AdamWSR against torch's own expectations of an AdamW: its optimizer database, every scheduler, hooks, GradScaler.

Of torch's inputs for AdamW, amsgrad does not apply (refused); of its error inputs, those about foreach do not (there is
no such option), and mixed float and tensor betas are taken, since betas are converted to floats.
"""

import copy

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.testing._internal.common_optimizers import optim_db

from nemo_sr import AdamWSR

ADAMW = next(info for info in optim_db if info.optim_cls is torch.optim.AdamW)
INPUTS = [given for given in ADAMW.optim_inputs_func("cpu") if "amsgrad" not in given.kwargs]
ERRORS = [
    given
    for given in ADAMW.optim_error_inputs_func("cpu", torch.bfloat16)
    if "foreach" not in given.optimizer_error_input.kwargs
    and "both floats or both Tensors" not in given.optimizer_error_input.desc
]


def problem(bias=True):
    torch.manual_seed(0)
    model = nn.Linear(16, 4, bias=bias).bfloat16()
    x = torch.randn(64, 16)
    y = (x @ torch.randn(16, 4)).bfloat16()

    def closure():
        model.zero_grad()
        loss = (model(x.bfloat16()) - y).float().square().mean()
        loss.backward()
        return loss

    return model, closure


@pytest.mark.parametrize("given", INPUTS, ids=lambda given: given.desc)
def test_the_loss_goes_the_right_way(given):
    model, closure = problem()
    options = {"lr": 1e-2, **given.kwargs}
    optimizer = AdamWSR(model.named_parameters(), **options)
    before = closure().item()
    for _ in range(50):
        after = optimizer.step(closure).item()
    assert (after > before) if options.get("maximize") else (after < 0.9 * before)


@pytest.mark.parametrize("given", INPUTS, ids=lambda given: given.desc)
def test_deepcopy_and_state_dict_continue_alike(given):
    model, closure = problem()
    optimizer = AdamWSR(model.named_parameters(), **given.kwargs)
    for _ in range(3):
        optimizer.step(closure)
    other, other_closure = problem()
    other.load_state_dict(model.state_dict())
    loaded = AdamWSR(other.named_parameters(), lr=9.0)
    loaded.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for _ in range(3):
        optimizer.step(closure)
        loaded.step(other_closure)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("given", ERRORS, ids=lambda given: given.optimizer_error_input.desc)
def test_torchs_construction_errors_are_errors_here(given):
    wrong = given.optimizer_error_input
    params = wrong.params if wrong.params is not None else [nn.Parameter(torch.ones(1).bfloat16())]
    if given.error_type is UserWarning:
        with pytest.warns(UserWarning, match=given.error_regex):
            AdamWSR(params, **wrong.kwargs)
    elif wrong.kwargs:  # our own messages, for the same mistakes
        with pytest.raises(given.error_type):
            AdamWSR(params, **wrong.kwargs)
    else:
        with pytest.raises(given.error_type, match=given.error_regex):
            AdamWSR(params, **wrong.kwargs)


SCHEDULERS = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda step: 0.9),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 4]),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.5, 3),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.1, total_iters=5),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 8),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 8),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 1e-4, 1e-2, step_size_up=3, cycle_momentum=True),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 1e-2, total_steps=8),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=2), lr_scheduler.ExponentialLR(o, 0.9)], [2]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(o, 0.1, total_iters=2), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
}


@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("make", SCHEDULERS.values(), ids=SCHEDULERS)
def test_every_scheduler_sets_the_rates_that_it_sets_for_torchs_adamw(make, as_tensor):
    def lr():
        return torch.tensor(1e-3) if as_tensor else 1e-3

    param, other = nn.Parameter(torch.ones(4).bfloat16()), nn.Parameter(torch.ones(4))
    ours, torchs = AdamWSR([param], lr=lr()), torch.optim.AdamW([other], lr=lr())
    schedules = [make(ours), make(torchs)]
    for _ in range(6):
        for optimizer, schedule in zip((ours, torchs), schedules, strict=True):
            for group in optimizer.param_groups:
                group["params"][0].grad = torch.ones_like(group["params"][0])
            optimizer.step()
            schedule.step(*([1.0] if isinstance(schedule, lr_scheduler.ReduceLROnPlateau) else []))
        mine, theirs = ours.param_groups[0], torchs.param_groups[0]
        assert float(mine["lr"]) == float(theirs["lr"])
        assert mine["betas"] == theirs["betas"]


def test_every_torch_scheduler_is_in_the_table():
    known = {name for name in lr_scheduler.__all__ if name not in ("LRScheduler",)}
    assert known == set(SCHEDULERS)


def test_step_hooks_and_grad_scaler():
    model, closure = problem()
    optimizer = AdamWSR(model.named_parameters())
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("pre"))
    optimizer.register_step_post_hook(lambda *_: calls.append("post"))
    optimizer.step(closure)
    assert calls == ["pre", "post"]
    plain, plain_closure = problem()
    reference = AdamWSR(plain.named_parameters())
    reference.step(plain_closure)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    scaler.scale(torch.ones(()))  # starts the scaler
    for (_, a), (_, b) in zip(model.named_parameters(), plain.named_parameters(), strict=True):
        assert torch.equal(a, b)
        a.grad = torch.ones_like(a) * 1024
        b.grad = torch.ones_like(b)
    scaler.step(optimizer)
    scaler.update()
    reference.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True))


@pytest.mark.skipif(
    not hasattr(torch.Tensor, "grad_dtype"),
    reason=f"torch {torch.__version__} has gradients of their weights' type alone",
)
def test_accumulated_and_fp32_gradients():
    param, other = nn.Parameter(torch.ones(64).bfloat16()), nn.Parameter(torch.ones(64).bfloat16())
    one, two = AdamWSR([("w", param)]), AdamWSR([("w", other)])
    gradient = torch.randn(64, generator=torch.Generator().manual_seed(0))
    param.grad_dtype = torch.float32
    param.grad = gradient.clone()
    other.decoupled_grad = gradient.clone()
    one.step()
    two.step()
    assert torch.equal(param, other)
    assert torch.equal(one.state[param]["exp_avg"], two.state[other]["exp_avg"])


def test_tied_weights_step_once():
    torch.manual_seed(0)
    embedding = nn.Embedding(8, 4).bfloat16()
    output = nn.Linear(4, 8, bias=False).bfloat16()
    output.weight = embedding.weight
    model = nn.Sequential(embedding, output)
    optimizer = AdamWSR(model.named_parameters())
    model(torch.arange(8)).float().square().mean().backward()
    optimizer.step()
    assert optimizer.state_dict()["param_groups"][0]["param_names"] == ["0.weight"]
    assert int(optimizer.state[embedding.weight]["step"]) == 1
