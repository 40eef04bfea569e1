# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""capturable=True without a GPU: the same bits, what is saved and loaded, what the host reads, and what is refused.

The device's own part is tests/kernels/triton_interpreted.py's and tests/kernels/test_triton_ptx.py's matter.
"""

import copy

import pytest
import torch
from torch import nn

from nemo_sr import AdamWSR
from nemo_sr import optimizer as optimizer_module
from nemo_sr.kernels import adamw_sr_triton_, capturable_twin, choose_backend
from nemo_sr.update import CapturableOptions
from small_runs import gradients, initial, same


def train(steps=4, *, start=0, **options):
    param = nn.Parameter(initial())
    lr = options.pop("lr", 1e-3)
    optimizer = AdamWSR([("w", param)], lr=lr.clone() if isinstance(lr, torch.Tensor) else lr, seed=5, **options)
    optimizer.initialize_state(param)
    optimizer.state[param]["step"].fill_(start)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 10)
    for grad in gradients(steps):
        param.grad = grad.clone()
        optimizer.grad_scale = torch.tensor(0.5)
        optimizer.step()
        scheduler.step()
    return param, optimizer


def assert_same_state(one, other):
    for name in ("exp_avg", "exp_avg_sq"):
        assert same(*(next(iter(o.state.values()))[name] for o in (one, other)))
    assert len({int(next(iter(o.state.values()))["step"]) for o in (one, other)}) == 1


@pytest.mark.parametrize("backend", ["reference", "cpu", "auto"])
@pytest.mark.parametrize("start", [0, 2**24, 2**32 - 2])
def test_the_same_bits_on_a_cpu(backend, start):
    lr = torch.tensor(1e-3)
    expected, plain = train(start=start, backend="reference", lr=lr)
    param, capturable = train(start=start, backend=backend, lr=lr, capturable=True)
    assert same(param, expected)
    assert_same_state(capturable, plain)
    assert capturable.state[param]["step"].dtype == torch.int64


@pytest.mark.parametrize("capturable", [(False, True), (True, False), (True, True)])
def test_a_saved_state_goes_from_either_kind_to_either(capturable):
    saving, loading = capturable
    expected, _ = train(3, start=2**24 + 1)
    param, optimizer = train(2, start=2**24 + 1, capturable=saving)
    saved = copy.deepcopy(optimizer.state_dict())
    if loading:
        saved["param_groups"][0]["step"] = 1  # a mirror that has fallen behind
    resumed = nn.Parameter(param.detach().clone())
    other = AdamWSR([("w", resumed)], seed=5, capturable=loading)
    for _ in range(2):
        other.load_state_dict(saved)
    assert other.param_groups[0]["capturable"] is loading
    step = other.state[resumed]["step"]
    assert (step.dtype, int(step), step.device) == (torch.int64, 2**24 + 3, resumed.device)
    resumed.grad = gradients(3)[2].clone()
    other.grad_scale = 0.5
    other.step()
    assert same(resumed, expected)


def test_a_loaded_learning_rate_stays_a_tensor_on_its_device():
    param = nn.Parameter(initial())
    optimizer = AdamWSR([param], lr=torch.tensor(1e-3), capturable=True)
    _, plain = train(1, lr=3e-4)
    saved = plain.state_dict()
    saved["param_groups"][0]["param_names"] = ["group0.param0"]
    optimizer.load_state_dict(saved)
    lr = optimizer.param_groups[0]["lr"]
    assert isinstance(lr, torch.Tensor)
    assert float(lr) == plain.param_groups[0]["lr"]
    saved["param_groups"][0]["lr"] = torch.tensor(2e-4)
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["lr"].dtype == torch.float32
    assert optimizer.param_groups[0]["lr"] is not saved["param_groups"][0]["lr"]


def test_the_state_of_torchs_capturable_adamw_loads():
    param = nn.Parameter(initial())
    saved = torch.optim.AdamW([param]).state_dict()
    moments = {name: torch.zeros_like(param) for name in ("exp_avg", "exp_avg_sq")}
    saved["state"] = {0: {"step": torch.tensor(7.0), **moments}}
    saved["param_groups"][0]["capturable"] = True
    for capturable in (False, True):
        optimizer = AdamWSR([param], capturable=capturable)
        optimizer.load_state_dict(saved)
        assert optimizer.param_groups[0]["capturable"] is capturable
        assert optimizer.state[param]["step"].dtype == torch.int64
        assert int(optimizer.state[param]["step"]) == 7


def on_meta(capturable=True):
    """An optimizer of parameters whose values nobody can read, on what stands for a GPU."""
    params = [nn.Parameter(torch.empty(5, device="meta", dtype=torch.bfloat16)) for _ in range(2)]
    lr = torch.empty((), device="meta")
    groups = [{"params": [params[0]]}]
    optimizer = AdamWSR(groups, lr=1e-3, capturable=capturable)
    optimizer.param_groups[0]["lr"] = lr
    optimizer.add_param_group({"params": [params[1]], "lr": 1e-4, "capturable": capturable})
    optimizer._backend = adamw_sr_triton_
    for param in params:
        param.grad = torch.empty_like(param)
    optimizer.grad_scale = torch.empty((), device="meta")
    return optimizer, params


def test_the_host_reads_no_tensor(monkeypatch):
    calls = []
    monkeypatch.setattr(
        optimizer_module, "capturable_twin", lambda *_: lambda shards, steps, options: calls.append((steps, options))
    )
    optimizer, params = on_meta()
    for _ in range(2):
        optimizer.step()
        optimizer.grad_scale = torch.empty((), device="meta")
    assert len(calls) == 4  # one for each group and step
    for steps, options in calls:
        assert isinstance(options, CapturableOptions)
        assert steps[0].is_meta
        assert options.grad_scale.is_meta
    assert calls[0][1].lr.is_meta
    assert calls[1][1].lr == 1e-4
    assert all(optimizer.state[param]["step"].dtype == torch.int64 for param in params)
    assert all("step" not in group for group in optimizer.param_groups)
    # What the other backends do is to read it.
    optimizer, _ = on_meta(capturable=False)
    with pytest.raises(RuntimeError, match="meta"):
        optimizer.step()


def test_only_the_triton_backend_leaves_the_step_on_the_device():
    assert capturable_twin(adamw_sr_triton_, torch.device("cuda")) is not None
    for name in ("reference", "cpu", "auto"):
        assert capturable_twin(choose_backend(name), torch.device("cpu")) is None


@pytest.mark.parametrize(
    ("capturable", "triton", "message"),
    [
        (False, True, r"would repeat this step's number, learning rate and noise for 'w'\. Make .* capturable=True"),
        (True, False, r"the step of the Triton backend alone; another one steps 'w' on cpu"),
        (True, True, r"would make the state of 'w' anew at each replay.* Take a few steps"),
    ],
)
def test_captures_that_cannot_work_are_refused(monkeypatch, capturable, triton, message):
    param = nn.Parameter(initial())
    optimizer = AdamWSR([("w", param)], capturable=capturable, backend="reference")
    if triton:
        optimizer._backend = adamw_sr_triton_
    param.grad = gradients(1)[0]
    monkeypatch.setattr(optimizer_module, "is_capturing", lambda: True)
    with pytest.raises(RuntimeError, match=message):
        optimizer.step()
    assert same(param, nn.Parameter(initial()))
    assert not optimizer.state[param]


def test_what_capturable_must_be():
    with pytest.raises(TypeError, match="capturable must be True or False; got 'yes'"):
        AdamWSR([nn.Parameter(initial())], capturable="yes")
    with pytest.raises(ValueError, match="lr must be finite"):
        AdamWSR([nn.Parameter(initial())], lr=torch.tensor(-1.0), capturable=True)


def test_a_bad_learning_rate_is_noticed_where_the_host_reads_it():
    param = nn.Parameter(initial())
    optimizer = AdamWSR([param], lr=torch.tensor(1e-3), capturable=True)
    param.grad = gradients(1)[0]
    optimizer.param_groups[0]["lr"].fill_(-1.0)
    with pytest.raises(ValueError, match="lr must be finite"):
        optimizer.step()
    assert same(param, nn.Parameter(initial()))
