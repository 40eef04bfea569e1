# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The stand-ins appear inside cpu_platform() and leave no trace."""

import os
import subprocess
import sys
import threading

import megatron.core.optimizer.distrib_optimizer
import megatron.core.tensor_parallel.random as mcore_random
import pytest
import torch
from megatron.core.tensor_parallel import layers
from megatron.core.transformer.moe import moe_utils

from nemo_sr.megatron import cpu_platform
from nemo_sr.megatron.versions import is_since

FUNCTIONS = [layers.LinearWithFrozenWeight, layers.LinearWithGradAccumulationAndAsyncCommunication]
OWNERS = [torch.cuda, torch.Tensor, torch.nn.Module, torch, torch.amp, mcore_random, layers, moe_utils, *FUNCTIONS]


def snapshot() -> list[dict]:
    return [dict(vars(owner)) for owner in OWNERS]


def assert_same(before: list[dict], after: list[dict]) -> None:
    for owner, old, new in zip(OWNERS, before, after, strict=True):
        changed = {name for name in old.keys() | new.keys() if old.get(name) is not new.get(name)}
        assert not changed, f"{owner.__name__}: {changed}"


def test_leaving_restores_every_attribute():
    before = snapshot()
    with cpu_platform():
        inside = snapshot()
    assert_same(before, snapshot())
    assert inside[0] != before[0]
    assert torch.overrides._len_torch_function_stack() == 0


def test_leaving_by_an_exception_restores_every_attribute():
    before = snapshot()
    with pytest.raises(KeyError), cpu_platform():
        raise KeyError("inside")
    assert_same(before, snapshot())
    with pytest.raises((RuntimeError, AssertionError)):
        torch.zeros(1, device="cuda")


def test_entering_again_inside_keeps_the_stand_ins_until_the_end():
    before = snapshot()
    with cpu_platform():
        inside = snapshot()
        with cpu_platform():
            assert_same(inside, snapshot())
        assert_same(inside, snapshot())
    assert_same(before, snapshot())


def test_what_megatron_asks_of_cuda_is_answered_by_the_cpu():
    with cpu_platform():
        assert torch.cuda.is_available() is False
        assert torch.zeros(2, device="cuda").device.type == "cpu"
        assert torch.ones(2, device=torch.device("cuda", 0)).device.type == "cpu"
        assert torch.empty_like(torch.ones(2), device="cuda").device.type == "cpu"
        assert torch.zeros(2, device=torch.cuda.current_device()).device.type == "cpu"
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            stream.wait_stream(torch.cuda.current_stream() if is_since("0.17") else torch.cuda.default_stream())
        state = torch.cuda.get_rng_state()
        first = torch.rand(3)
        mcore_random._set_cuda_rng_state(state)
        assert torch.equal(mcore_random._get_cuda_rng_state(), state)
        assert torch.equal(torch.rand(3), first)
        tensor = torch.ones(2)
        assert tensor.cuda() is tensor
        assert isinstance(torch.nn.Linear(2, 2).cuda(), torch.nn.Linear)


def test_only_megatron_hears_that_a_tensor_is_on_cuda():
    tensor = torch.ones(2, dtype=torch.bfloat16)
    code = compile("kind = tensor.type()", "<megatron>", "exec")
    with cpu_platform():
        assert tensor.type() == "torch.BFloat16Tensor"
        assert tensor.type(torch.float32).dtype == torch.float32
        seen = {"__name__": megatron.core.optimizer.distrib_optimizer.__name__, "tensor": tensor}
        exec(code, seen)
        assert seen["kind"] == "torch.cuda.BFloat16Tensor"


def test_every_stand_in_is_an_object_of_its_own():
    before = snapshot()
    with cpu_platform():
        inside = snapshot()
    new = [
        value
        for old, now in zip(before, inside, strict=True)
        for name, value in now.items()
        if old.get(name) is not value
    ]
    assert len(new) == len({id(value) for value in new}) == 16


def test_another_thread_is_refused_while_one_is_inside():
    errors = []

    def enter() -> None:
        try:
            with cpu_platform():
                pass
        except RuntimeError as error:
            errors.append(str(error))

    with cpu_platform():
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
    assert len(errors) == 1
    assert "another thread" in errors[0]


def test_refused_once_cuda_has_been_initialised():
    # torch's own functions; what they ask is answered as a driver with one GPU would.
    program = (
        "import torch\n"
        "from nemo_sr.megatron import cpu_platform\n"
        "with cpu_platform(): pass\n"  # imports Megatron, which would use the driver
        "torch._C._cuda_getDeviceCount = lambda: 1\n"
        "with cpu_platform(): assert not torch.cuda.is_available()\n"
        "assert torch.cuda.is_available() and not torch.cuda.is_initialized()\n"
        "torch.cuda._initialized = True\n"
        "assert torch.cuda.is_available() and torch.cuda.is_initialized()\n"
        "before = dict(vars(torch.cuda))\n"
        "try:\n"
        "    with cpu_platform(): print('entered')\n"
        "except RuntimeError as error: print(error)\n"
        "assert dict(vars(torch.cuda)) == before\n"
    )
    # What Lightning, and commands that other tests call, set in this process: torch would ask no driver.
    hidden = {"CUDA_VISIBLE_DEVICES", "PYTORCH_NVML_BASED_CUDA_CHECK"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    command = [sys.executable, "-W", "ignore", "-c", program]
    result = subprocess.run(command, check=False, timeout=120, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    assert "CUDA has not been initialised" in result.stdout
    assert "CUDA_VISIBLE_DEVICES=''" in result.stdout


def test_autocast_for_a_gpu_is_autocast_on_the_cpu():
    x = torch.ones(2, 2)
    with cpu_platform():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert (x @ x).dtype == torch.bfloat16
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert (x @ x).dtype == torch.bfloat16
        with torch.autocast("cuda", enabled=False):
            assert (x @ x).dtype == torch.float32
        assert isinstance(torch.autocast("cuda"), torch.amp.autocast_mode.autocast)


def test_works_when_megatron_is_imported_inside():
    program = (
        "import sys, torch, nemo_sr.megatron\n"
        "assert 'megatron.core' not in sys.modules\n"
        "with nemo_sr.megatron.cpu_platform():\n"
        "    from megatron.core.tensor_parallel.random import get_cuda_rng_tracker\n"
        "    tracker = get_cuda_rng_tracker()\n"
        "    tracker.add('some', 1)\n"
        "    with tracker.fork('some'): a = torch.rand(2)\n"
        "    torch.manual_seed(1); assert torch.equal(a, torch.rand(2))\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, timeout=120)
