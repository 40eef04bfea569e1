# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""When the Triton backend can run, and that nothing imports Triton before it does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nemo_sr import ShardLayout
from nemo_sr.kernels import triton_backend
from nemo_sr.kernels.triton_backend import adamw_sr_triton_, why_not_triton
from nemo_sr.update import ParamShard, StepOptions, StepScalars

OPTIONS = StepOptions(
    1, StepScalars.of_step(1, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1), "nearest", "stochastic"
)


@pytest.fixture(autouse=True)
def _compiled(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


@pytest.fixture
def with_gpu(monkeypatch):
    """Let the questions about the machine's GPU be answered as on an H200; nothing is run on it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))


def make_module(version):
    module = type(sys)("triton")
    module.__version__ = version
    return module


def test_importing_it_does_not_import_triton():
    code = (
        "import sys, nemo_sr, nemo_sr.kernels.triton_backend as backend; "
        "backend.why_not_triton('cpu'); print('triton' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


def test_reasons_in_the_machine(monkeypatch):
    assert "on cpu, not on a CUDA device" in why_not_triton("cpu")
    assert "on cpu, not on a CUDA device" in why_not_triton(torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "torch finds no CUDA device" in why_not_triton()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 5))
    assert "compute capability 8.0 (Ampere) or newer; cuda:1 has 7.5" in why_not_triton("cuda:1")
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert "built for ROCm" in why_not_triton()


@pytest.mark.usefixtures("with_gpu")
def test_reasons_in_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "triton")
        patch.setattr(triton_backend, "import_module", _missing)
        assert "the package triton is not installed" in why_not_triton()
        patch.setattr(triton_backend, "import_module", _broken)
        with pytest.raises(ModuleNotFoundError, match="libtriton"):
            why_not_triton()
    for version, can in (("3.5.1", False), ("2.3.1", False), ("3.6.0", True), ("3.10.0", True), ("4.0.0+git1", True)):
        monkeypatch.setitem(sys.modules, "triton", make_module(version))
        reason = why_not_triton()
        assert (reason is None) == can
        assert can or (version in reason and "3.6 or newer" in reason)


def _missing(name):
    raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _broken(name):
    raise ModuleNotFoundError("No module named 'libtriton'", name="libtriton")


def test_a_shard_on_a_cpu_is_refused_before_anything_is_written():
    tensors = [torch.ones(8, dtype=torch.bfloat16) for _ in range(4)]
    shard = ParamShard(*tensors, key=1, layouts=(ShardLayout.whole((8,)),))
    with pytest.raises(RuntimeError, match=r"cannot run here: the parameters are on cpu.*they give the same bits"):
        adamw_sr_triton_([shard], OPTIONS)
    assert all(bool((tensor == 1).all()) for tensor in tensors)


def test_nothing_to_step():
    adamw_sr_triton_([], OPTIONS)


def test_the_benchmark_ends_at_once_without_a_gpu():
    script = Path(__file__).parents[2] / "benchmarks" / "step_gpu.py"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 1
    assert result.stdout == ""
    assert "step_gpu.py needs a GPU that the Triton backend runs on; torch finds no CUDA device" in result.stderr
