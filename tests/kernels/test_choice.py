# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Which backend steps what, and what is said where one cannot run."""

import warnings
from dataclasses import replace

import pytest
import torch
from shard_cases import assert_same_bits, bits_of_reference, copy, make_shard, options, written

from nemo_sr import AdamWSR, ShardLayout
from nemo_sr.kernels import _fastest, can_use_cpu, can_use_triton, choose_backend, cpu_backend
from nemo_sr.update import adamw_sr_


@pytest.fixture
def without_library(monkeypatch, tmp_path):
    monkeypatch.setattr(cpu_backend, "LIBRARY", tmp_path / "_cpu.so")
    _fastest.cache_clear()
    yield
    _fastest.cache_clear()


@pytest.mark.usefixtures("without_library")
def test_without_the_library_auto_says_once_that_it_takes_the_reference():
    assert not can_use_cpu()
    shards = [make_shard(())]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            choose_backend("auto")(shards, options())
    (message,) = (str(warning.message) for warning in said)
    assert "steps the parameters on cpu with its reference backend" in message
    assert "was not built" in message
    with pytest.raises(RuntimeError, match=r"backend='cpu' was asked for, but it cannot run here: .* was not built"):
        AdamWSR([torch.nn.Parameter(torch.ones(3).bfloat16())], backend="cpu")


def test_what_cannot_be_stepped_is_refused():
    assert can_use_cpu(), cpu_backend.why_not_cpu()
    shard = make_shard((ShardLayout.whole((12,)),))
    elsewhere = replace(shard, weight=shard.weight.to("meta"))
    with pytest.raises(ValueError, match=r"needs contiguous tensors of one size on the CPU; .* on meta"):
        choose_backend("cpu")([elsewhere], options())
    strided = replace(shard, exp_avg=torch.ones(24).bfloat16()[::2])
    with pytest.raises(ValueError, match="contiguous"):
        choose_backend("cpu")([strided], options())
    with pytest.raises(TypeError, match="of one dtype"):
        choose_backend("cpu")([replace(shard, exp_avg=torch.ones(12))], options())
    with pytest.raises(ValueError, match="as many elements as its layouts"):
        choose_backend("cpu")([replace(shard, layouts=())], options())
    with pytest.raises(RuntimeError, match="path must be one"):
        cpu_backend.step_on([shard], options(), path="sse9")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_parameter_is_refused_when_cpu_is_forced():
    param = torch.nn.Parameter(torch.ones(3, device="cuda").bfloat16())
    param.grad = torch.ones_like(param)
    with pytest.raises(ValueError, match="on the CPU; got one of 3 elements on cuda"):
        AdamWSR([param], backend="cpu").step()


def test_the_reference_is_chosen_by_name():
    assert choose_backend("reference") is adamw_sr_


@pytest.mark.skipif(can_use_triton(), reason="the Triton backend can run here")
def test_triton_is_refused_with_its_reason():
    with pytest.raises(RuntimeError, match=r"backend='triton' was asked for, but it cannot run here: .*"):
        AdamWSR([torch.nn.Parameter(torch.ones(3).bfloat16())], backend="triton")


def test_auto_steps_each_device_with_its_own_backend():
    assert _fastest(torch.device("cpu")) is choose_backend("cpu")
    assert _fastest(torch.device("meta")) is adamw_sr_
    shards = [make_shard((ShardLayout.whole((size,)),), seed=size) for size in (12, 100)]
    meta = {name: torch.ones(5, device="meta") for name in ("weight", "grad", "exp_avg", "exp_avg_sq")}
    elsewhere = replace(shards[0], layouts=(ShardLayout.whole((5,)),), **meta)
    stepped = copy(shards)
    choose_backend("auto")([stepped[0], elsewhere, stepped[1]], options())
    assert_same_bits(written(stepped), bits_of_reference(shards, options()))
