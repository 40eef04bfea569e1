# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The native CPU backend against the specification, nemo_sr/update.py: the same bits, on each of its paths."""

import os
import subprocess
import sys

import pytest
import torch
from shard_cases import LAYOUTS, assert_same_bits, bits_of_reference, copy, make_shard, options, written

import test_vectors
from nemo_sr import AdamWSR, ShardLayout
from nemo_sr.kernels import adamw_sr_auto_
from nemo_sr.kernels.cpu_backend import step_on
from nemo_sr.noise import noise_key
from nemo_sr.update import ParamShard, StepOptions, StepScalars, adamw_float32
from test_update import HYPERPARAMETERS, assert_all_same_bits, inputs, scalars_of

ROUNDINGS = [(m, v) for m in ("nearest", "stochastic") for v in ("nearest", "stochastic")]
GRAD_DTYPES = [torch.bfloat16, torch.float32]


def bits_of_cpu(shards, step_options, **how):
    stepped = copy(shards)
    step_on(stepped, step_options, **how)
    return written(stepped)


def shard_of(arrays, grad_dtype=torch.bfloat16):
    w, g, m, v = (torch.from_numpy(x) for x in arrays)
    layouts = (ShardLayout.whole((w.numel(),)),)
    return ParamShard(w.bfloat16(), g.to(grad_dtype), m.bfloat16(), v.bfloat16(), key=2**64 - 12345, layouts=layouts)


@pytest.mark.parametrize("kind", ["ordinary", "all exponents", "special"])
@pytest.mark.parametrize("case", HYPERPARAMETERS, ids=str)
@pytest.mark.parametrize("grad_dtype", GRAD_DTYPES)
def test_float32_values_before_rounding(path, case, kind, grad_dtype):
    w, g, m, v = inputs(kind)
    if grad_dtype == torch.float32:
        g = g * (1 + 2**-10)
    shard = shard_of((w, g, m, v), grad_dtype)
    maximize = case.get("maximize", False)
    expected = adamw_float32(
        shard.weight, shard.grad, shard.exp_avg, shard.exp_avg_sq, scalars_of(case), maximize=maximize
    )
    step_options = StepOptions(case["t"], scalars_of(case), "nearest", "stochastic", maximize)
    bits = bits_of_reference([shard], step_options)
    assert_same_bits(bits_of_cpu([shard], step_options, path=path), bits)
    trace = tuple(torch.full_like(shard.weight, 9, dtype=torch.float32) for _ in range(3))
    assert_same_bits(bits_of_cpu([shard], step_options, path=path, trace=[trace]), bits)
    assert_all_same_bits(trace, [value.numpy() for value in expected])


@pytest.mark.parametrize("roundings", ROUNDINGS, ids=str)
@pytest.mark.parametrize("grad_dtype", GRAD_DTYPES)
@pytest.mark.parametrize("layouts", LAYOUTS.values(), ids=LAYOUTS)
def test_layouts(path, layouts, grad_dtype, roundings):
    shards = [make_shard(layouts, grad_dtype=grad_dtype)]
    step_options = options(*roundings)
    trace = [tuple(torch.empty(shards[0].weight.numel()) for _ in range(3))]
    assert_same_bits(bits_of_cpu(shards, step_options, path=path), bits_of_reference(shards, step_options))
    assert_same_bits(bits_of_cpu(shards, step_options, path=path, trace=trace), bits_of_reference(shards, step_options))


@pytest.mark.parametrize("start", [0, 1, 7, 8, 13])
def test_every_size(path, start):
    shards = [
        make_shard(
            (ShardLayout((100,), (0,), (100,), start, start + size),), seed=size, grad_dtype=GRAD_DTYPES[size % 2]
        )
        for size in range(71)
    ]
    for roundings in ROUNDINGS:
        step_options = options(*roundings)
        expected = bits_of_reference(shards, step_options)
        assert_same_bits(bits_of_cpu(shards, step_options, path=path), expected)  # many small ones in one call
        for number, shard in enumerate(shards):
            assert_same_bits(bits_of_cpu([shard], step_options, path=path), expected[3 * number : 3 * number + 3])


@pytest.mark.parametrize("own_threads", [False, True])
@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_threads(path, num_threads, own_threads):
    shards = [
        make_shard((ShardLayout.whole((1001, 1003)),)),
        make_shard((ShardLayout((1000, 2000), (0, 1000), (1000, 1000), 12345, 987654),), seed=1),
        *(make_shard((ShardLayout.whole((size,)),), seed=size) for size in range(2, 50)),
    ]
    expected = bits_of_reference(shards, options())
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        assert_same_bits(bits_of_cpu(shards, options(), path=path, own_threads=own_threads), expected)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("kind", ["all exponents", "special"])
@pytest.mark.parametrize("grad_dtype", GRAD_DTYPES)
@pytest.mark.parametrize("dtype", GRAD_DTYPES)
def test_options(path, dtype, grad_dtype, kind):
    w, g, m, v = (torch.from_numpy(x) for x in inputs(kind, 5_000))
    shard = ParamShard(
        w.to(dtype), g.to(grad_dtype), m.to(dtype), v.to(dtype), key=1, layouts=(ShardLayout.whole((w.numel(),)),)
    )
    for roundings in ROUNDINGS:
        for maximize in (False, True):
            for grad_scale in (1.0, -3.5, torch.tensor(0.37), 0.0, float("inf"), float("nan")):
                step_options = options(*roundings, maximize=maximize, grad_scale=grad_scale, step=2**32 + 5)
                expected, result = (
                    bits_of_reference([shard], step_options),
                    bits_of_cpu([shard], step_options, path=path),
                )
                if dtype == torch.float32:  # payloads are outside the specification where nothing is rounded
                    expected, result = (
                        [bits.view(torch.float32).nan_to_num(nan=7.0).view(torch.int16) for bits in both]
                        for both in (expected, result)
                    )
                assert_same_bits(result, expected)


def test_nan_payloads_of_float32_gradients(path):
    bits = torch.tensor([0x7FFFFFFF, 0x7F800001, 0x7FFFFFFF - 2**32, 0x7FC0FFFF, -1], dtype=torch.int64)
    grad = bits.to(torch.int32).view(torch.float32).repeat(40)
    ones = [torch.ones(grad.numel()).bfloat16() for _ in range(3)]
    shard = ParamShard(ones[0], grad, ones[1], ones[2], key=1, layouts=(ShardLayout.whole((grad.numel(),)),))
    for roundings in ROUNDINGS:
        result = bits_of_cpu([shard], options(*roundings), path=path)
        assert_same_bits(result, bits_of_reference([shard], options(*roundings)))
        assert all((tensor == 0x7FFF).all() for tensor in result)


def test_subnormals_are_kept_where_the_process_flushes_them(path):
    n = 1 << 18
    w, g, m, v = (torch.full((n,), scale).bfloat16() for scale in (1e-39, 2e-39, 3e-39, 4e-39))
    shards = [ParamShard(w, g, m, v, key=1, layouts=(ShardLayout.whole((n,)),))]
    expected = bits_of_reference(shards, options(grad_scale=1.0))
    assert (expected[2].view(torch.bfloat16) > 0).all()
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert torch.set_flush_denormal(True)
        for own_threads in (False, True):
            result = bits_of_cpu(shards, options(grad_scale=1.0), path=path, own_threads=own_threads)
            assert_same_bits(result, expected)
        assert float(torch.tensor([1e-39]) * 1) == 0, "the step has changed the process's mode"
        torch.set_flush_denormal(False)
        bits_of_cpu(shards, options(), path=path)
        assert float(torch.tensor([1e-39]) * 1) > 0, "the step has changed the process's mode"
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(before)


@pytest.mark.parametrize("v", test_vectors.VECTORS["steps"], ids=lambda v: f"step {v['step']} {v['exp_avg_rounding']}")
def test_published_vectors(path, v):
    before = [test_vectors.bf16(v["before"][name]) for name in ("weight", "grad", "exp_avg", "exp_avg_sq")]
    hyperparameters = {name: v[name] for name in ("lr", "betas", "eps", "weight_decay")}
    scalars = StepScalars.of_step(v["step"], grad_scale=v["grad_scale"], **hyperparameters)
    key = noise_key(int(v["seed"]), v["name"])
    shard = ParamShard(*before, key=key, layouts=(ShardLayout.whole(before[0].shape),))
    trace = tuple(torch.empty(before[0].shape) for _ in range(3))
    step_options = StepOptions(v["step"], scalars, v["exp_avg_rounding"], v["exp_avg_sq_rounding"], v["maximize"])
    for how in ({}, {"trace": [trace]}):
        stepped = copy([shard])
        step_on(stepped, step_options, path=path, **how)
        for name in ("weight", "exp_avg", "exp_avg_sq"):
            assert test_vectors.hexadecimal(getattr(stepped[0], name), 4) == v["after"][name]
    for name, value in zip(("weight", "exp_avg", "exp_avg_sq"), trace, strict=True):
        bits = test_vectors.hexadecimal(value, 8)
        assert ["nan" if x != x else b for x, b in zip(value.tolist(), bits, strict=True)] == v["float32"][name]


def test_the_comparison_notices_another_rounding_key_or_step():
    shards = [make_shard(LAYOUTS["odd"])]
    expected = bits_of_reference(shards, options())
    assert_same_bits(bits_of_cpu(shards, options()), expected)
    for other in (options("stochastic", "stochastic"), options("nearest", "nearest"), options(step=8)):
        with pytest.raises(AssertionError, match="differ"):
            assert_same_bits(bits_of_cpu(shards, other), expected)
    with pytest.raises(AssertionError, match="differ"):
        assert_same_bits(
            bits_of_cpu([make_shard((ShardLayout((1004,), (1,), (1003,), 0, 1003),))], options()), expected
        )


def test_a_forked_child_steps():
    # The threads of torch's pool do not survive the fork; waiting for them would hang.
    code = """
import os, torch
from shard_cases import *
from nemo_sr.kernels import adamw_sr_auto_
torch.set_num_threads(2)
shards = [make_shard((ShardLayout.whole((1 << 20,)),))]
stepped = copy(shards)
adamw_sr_auto_(stepped, options())
expected, again = written(stepped), copy(shards)
child = os.fork()
if child == 0:
    adamw_sr_auto_(again, options())
    torch.set_num_threads(1)
    assert_same_bits(written(again), expected)
    print("stepped", flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment, timeout=120
    )
    assert result.stdout == "stepped\n", result.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of resident memory is reset through Linux's /proc")
def test_no_memory_that_grows_with_the_parameters():
    code = """
import torch
from pathlib import Path
from shard_cases import *
from nemo_sr.kernels import adamw_sr_auto_
def resident(line):
    return int(Path("/proc/self/status").read_text().split(line + ":")[1].split()[0])
adamw_sr_auto_([make_shard((ShardLayout.whole((1 << 17,)),))], options())
ones = [torch.ones(1 << 24, dtype=torch.bfloat16) for _ in range(4)]
shard = ParamShard(*ones, 1, (ShardLayout((1 << 12, 1 << 13), (0, 0), (1 << 12, 1 << 12), 0, 1 << 24),))
Path("/proc/self/clear_refs").write_text("5")  # sets the peak to the present
before = resident("VmRSS")
adamw_sr_auto_([shard], options())
print(resident("VmHWM") - before)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert int(result.stdout) < 2048, f"{result.stdout} KiB for a step of 2^24 elements"


def test_the_optimizer_takes_it():
    torch.manual_seed(0)
    initial, grads = torch.randn(33, 65).bfloat16(), [torch.randn(33, 65).bfloat16() for _ in range(3)]
    results = []
    for backend in ("reference", "cpu", "auto"):
        param = torch.nn.Parameter(initial.clone())
        optimizer = AdamWSR([("w", param)], backend=backend)
        for grad in grads:
            param.grad = grad.clone()
            optimizer.step()
        results.append(written([ParamShard(param.detach(), grads[0], *moments(optimizer, param), 0, ())]))
    assert_same_bits(results[1], results[0])
    assert_same_bits(results[2], results[0])
    assert optimizer._backend is adamw_sr_auto_


def moments(optimizer, param):
    return optimizer.state[param]["exp_avg"], optimizer.state[param]["exp_avg_sq"]
