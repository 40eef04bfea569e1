# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Steps that the device counts, in Triton's interpreter: the bits of steps that the host counts, and nothing read.

test_triton_interpreter.py runs this file as it runs triton_interpreted.py.
"""

import dataclasses

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton_interpreted import (
    BF16,
    FP32,
    _wide_blocks,  # noqa: F401 - a fixture for every test
    assert_equal_shards,
    bits_of,
    copy_of,
    make_shard,
    options_of,
    slices,
)

from nemo_sr import AdamWSR
from nemo_sr import optimizer as optimizer_module
from nemo_sr.kernels import triton_backend
from nemo_sr.update import CapturableOptions, StepScalars, adamw_sr_
from test_update import HYPERPARAMETERS, inputs


def capturable_of(case, roundings=("nearest", "stochastic")):
    return CapturableOptions(
        case["lr"],
        case["betas"],
        case["eps"],
        case["wd"],
        case.get("scale", 1.0),
        *roundings,
        maximize=case.get("maximize", False),
    )


STEPS = [1, 2, 3, 255, 256, 2**24, 2**24 + 1, 2**31, 2**32 - 1, 2**32 + 5, 2**53 + 1, 2**62 + 3]


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.95, 0.99999), (0.0, 0.0), (0.9999999, 0.999999999)], ids=str)
@pytest.mark.parametrize("lr", [1e-3, 0.0, 1e-45, 1e39])
def test_scalars_computed_on_the_device(betas, lr):
    steps = [*STEPS, *np.random.default_rng(0).integers(1, 10**6, 200).tolist()]
    options = capturable_of(HYPERPARAMETERS[0] | {"betas": betas, "lr": lr})
    taken = [torch.tensor(step - 1) for step in steps]
    rows = triton_backend._scalars(taken, options, torch.device("cpu")).numpy()
    expected = [StepScalars.of_step(step, lr=lr, betas=betas, eps=1e-8, weight_decay=1e-2) for step in steps]
    for column, name in enumerate(("inverse_root_correction2", "decay", "step_size")):
        wanted = np.array([getattr(scalars, name) for scalars in expected], dtype=np.float32)
        assert np.array_equal(rows[:, column], wanted.view(np.int32)), name
    assert np.array_equal(rows[:, 3].view(np.uint32), np.array([step % 2**32 for step in steps], dtype=np.uint32))


class NothingIsRead(TorchDispatchMode):
    """Fails where a tensor's value is asked for."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func is not torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("case", HYPERPARAMETERS, ids=str)
@pytest.mark.parametrize("tensors", [False, True])
def test_steps_counted_on_the_device(case, tensors):
    parts = list(slices(inputs("special"), 0, 999, 1003, 64, 300, 8, 1))
    dtypes = [(BF16, BF16), (BF16, BF16), (BF16, FP32), (BF16, BF16), (FP32, FP32), (BF16, BF16), (BF16, FP32)]
    shards = [
        make_shard(part, dtype=dtype, grad_dtype=grad_dtype, name=str(number), shift=(number % 3,) * 4)
        for number, (part, (dtype, grad_dtype)) in enumerate(zip(parts, dtypes, strict=True))
    ]
    numbers = [1, case["t"], case["t"], 2**24 + 1, 2**32 + 5, 1, 2**31]
    expected, result = [copy_of(shard) for shard in shards], [copy_of(shard) for shard in shards]
    for shard, number in zip(expected, numbers, strict=True):
        adamw_sr_([shard], options_of(case | {"t": number}))
    options = capturable_of(case)
    if tensors:
        # A tensor is used at its own value.
        lr = torch.tensor([case["lr"]], dtype=torch.float64)
        options = dataclasses.replace(options, lr=lr, grad_scale=torch.tensor(case.get("scale", 1.0), dtype=FP32))
    steps = [torch.tensor(number - 1) for number in numbers]
    with NothingIsRead():
        triton_backend.adamw_sr_triton_capturable_(result, steps, options)
    assert_equal_shards(result, expected)
    assert [int(step) for step in steps] == [number - 1 for number in numbers]


def train(steps, *, capturable, backend="triton", on_step=lambda number, optimizer: None):
    """Train a small model whose second weight gets a gradient every other step alone."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(13, 24), torch.nn.Linear(24, 5)).bfloat16()
    lr = torch.tensor(1e-2)
    optimizer = AdamWSR(model.named_parameters(), lr=lr, seed=3, backend=backend, capturable=capturable)
    for param in model.parameters():
        optimizer.initialize_state(param)
        optimizer.state[param]["step"].fill_(2**24 - 1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    for number in range(steps):
        model(torch.randn(7, 13, dtype=BF16)).square().sum().backward()
        if number % 2:
            model[1].weight.grad = None
        optimizer.grad_scale = torch.tensor(0.5)
        on_step(number, optimizer)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    return model, optimizer


def assert_same_run(one, other):
    for a, b in zip(one[0].parameters(), other[0].parameters(), strict=True):
        assert torch.equal(bits_of(a.detach()), bits_of(b.detach()))
        states = one[1].state[a], other[1].state[b]
        assert all(torch.equal(states[0][name], states[1][name]) for name in ("step", "exp_avg", "exp_avg_sq"))
        assert states[0]["step"].dtype == torch.int64


def test_the_optimizer_takes_the_same_steps_when_capturable():
    assert_same_run(train(5, capturable=True), train(5, capturable=False, backend="reference"))


def test_what_a_graph_captures(monkeypatch):
    """Two steps as a warm-up, then steps as during a capture: with gradients elsewhere, and nothing sent."""
    kept = []

    def on_step(number, optimizer):
        if number == 2:
            for owner in (triton_backend, optimizer_module):
                monkeypatch.setattr(owner, "is_capturing", lambda: True)
            monkeypatch.setattr(triton_backend, "_send", pytest.fail)
        for group in optimizer.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    param.grad = param.grad.clone()
                    kept.append(param.grad)  # so that no address comes again

    captured = train(6, capturable=True, on_step=on_step)
    monkeypatch.undo()
    assert_same_run(captured, train(6, capturable=False, backend="reference"))


def test_captures_unlike_any_earlier_step_are_refused(monkeypatch):
    shard = make_shard(next(slices(inputs("ordinary"), 100)), name="never stepped")
    before = bits_of(shard.weight).clone()
    steps, options = [torch.tensor(4)], capturable_of(HYPERPARAMETERS[1])
    monkeypatch.setattr(triton_backend, "is_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="no earlier step has sent the tables for this one"):
        triton_backend.adamw_sr_triton_capturable_([shard], steps, options)
    elsewhere = dataclasses.replace(options, lr=torch.empty((), device="meta"))
    with pytest.raises(RuntimeError, match=r"only read lr on the parameters' device, cpu; it is a tensor on meta"):
        triton_backend.adamw_sr_triton_capturable_([shard], steps, elsewhere)
    assert torch.equal(bits_of(shard.weight), before)
