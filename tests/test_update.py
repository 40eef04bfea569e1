# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""update.py against an independent model: the FP32 values before rounding, bit for bit, and the bits written."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import reference
import sharp_inputs
from nemo_sr import ShardLayout, update
from nemo_sr.noise import noise_key
from nemo_sr.update import (
    ParamShard,
    StepOptions,
    StepScalars,
    adamw_float32,
    adamw_sr_,
    power,
    require_gradual_underflow,
)

HYPERPARAMETERS = [
    {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "wd": 1e-2, "t": 1},
    {"lr": 7e-4, "betas": (0.9, 0.95), "eps": 1e-8, "wd": 0.1, "t": 1000, "scale": 0.37},
    {"lr": 0.0, "betas": (0.0, 0.0), "eps": 1e-15, "wd": 0.0, "t": 7, "maximize": True},
    {"lr": 3e-3, "betas": (0.99, 0.9999), "eps": 1e-6, "wd": 0.3, "t": 2**31 + 3, "scale": 1024.0},
]
SPECIAL = np.array(
    [0x0000, 0x8000, 0x0001, 0x8001, 0x007F, 0x0080, 0x3F80, 0xBF80, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7FC0, 0xFFFF],
    dtype=np.uint32,
)


def random_bf16(n, seed):
    """BF16 values over all exponents."""
    b = np.random.default_rng(seed).integers(0, 65536, n, dtype=np.uint32)
    return reference.from_bf16(np.where((b & 0x7FFF) >= 0x7F80, b & 0xBFFF, b))


def ordinary_bf16(n, seed, scale):
    x = (np.random.default_rng(seed).standard_normal(n) * scale).astype(np.float32)
    return reference.from_bf16(x.view(np.uint32) >> 16)


def special_quadruples():
    w, g, m, v = np.meshgrid(*[reference.from_bf16(SPECIAL)] * 4)
    return tuple(np.ascontiguousarray(x.reshape(-1)) for x in (w, g, m, v))


def inputs(kind, n=60_000):
    if kind == "special":
        return special_quadruples()
    if kind == "all exponents":
        w, g, m, v = (random_bf16(n, seed) for seed in range(4))
        return w, g, m, np.abs(v)
    w, g = ordinary_bf16(n, 0, 0.02), ordinary_bf16(n, 1, 1e-3)
    return w, g, ordinary_bf16(n, 2, 1e-3), np.abs(ordinary_bf16(n, 3, 1e-6))


def scalars_of(case):
    return StepScalars.of_step(
        case["t"],
        lr=case["lr"],
        betas=case["betas"],
        eps=case["eps"],
        weight_decay=case["wd"],
        grad_scale=case.get("scale", 1.0),
    )


def assert_same_bits(result, expected):
    """NaN payloads are outside the specification before rounding."""
    result = result.numpy()
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(result), nan)
    differ = (result.view(np.uint32) != expected.view(np.uint32)) & ~nan
    assert not differ.any(), f"{differ.sum()} of {differ.size} differ"


@pytest.mark.parametrize("kind", ["ordinary", "all exponents", "special"])
@pytest.mark.parametrize("case", HYPERPARAMETERS, ids=str)
def test_float32_values_before_rounding(case, kind):
    arrays = inputs(kind)
    expected = reference.step_float32(*arrays, **case)
    tensors = [torch.from_numpy(x) for x in arrays]
    result = adamw_float32(*tensors, scalars_of(case), maximize=case.get("maximize", False))
    assert_all_same_bits(result, expected)
    # A 0-dimensional FP32 tensor as the gradient's scale gives the same bits.
    on_device = StepScalars(**{**vars(scalars_of(case)), "grad_scale": torch.tensor(case.get("scale", 1.0))})
    again = adamw_float32(*tensors, on_device, maximize=case.get("maximize", False))
    for one, other in zip(again, result, strict=True):
        assert torch.equal(one.view(torch.int32), other.view(torch.int32))


def assert_all_same_bits(result, expected):
    for one, other in zip(result, expected, strict=True):
        assert_same_bits(one, other)


def broken(name):
    """Variants of adamw_float32 with one mistake each, which the comparison above must notice."""

    def step(weight, grad, exp_avg, exp_avg_sq, s):
        g = grad * s.grad_scale
        m = exp_avg * s.beta1 + g * s.one_minus_beta1
        v = exp_avg_sq * s.beta2 + (g * g) * s.one_minus_beta2
        if name == "v: g*(g*c)":
            v = exp_avg_sq * s.beta2 + g * (g * s.one_minus_beta2)
        if name == "m: fused":
            m = (exp_avg.double() * s.beta1 + (g * s.one_minus_beta1).double()).float()
        if name == "v: fused":
            v = (exp_avg_sq.double() * s.beta2 + ((g * g) * s.one_minus_beta2).double()).float()
        root = torch.sqrt(v) if name == "torch.sqrt" else v.double().sqrt().float()
        d = root * s.inverse_root_correction2 + s.eps
        if name == "d: fused":
            d = (root.double() * s.inverse_root_correction2 + s.eps).float()
        ratio = m * (1 / d) if name == "reciprocal" else m / d
        w = weight * s.decay - ratio * s.step_size
        if name == "w: fused":
            w = (weight.double() * s.decay - (ratio * s.step_size).double()).float()
        return w, m, v

    return step


@pytest.mark.parametrize(
    "mistake",
    ["v: g*(g*c)", "m: fused", "v: fused", "d: fused", "w: fused", "reciprocal", "torch.sqrt", "1-beta in FP32"],
)
def test_the_comparison_notices_each_mistake(mistake):
    case = HYPERPARAMETERS[1] | {"eps": 1e-4, "t": 10}
    arrays = inputs("ordinary")
    if mistake == "torch.sqrt" and torch.equal(*_two_roots(torch.from_numpy(arrays[3]))):
        pytest.skip("torch.sqrt is correctly rounded on this processor")
    scalars = scalars_of(case)
    if mistake == "1-beta in FP32":
        wrong = float(np.float32(1) - np.float32(case["betas"][0]))
        scalars = StepScalars(**{**vars(scalars), "one_minus_beta1": wrong})
    expected = reference.step_float32(*arrays, **case)
    result = broken(mistake)(*[torch.from_numpy(x) for x in arrays], scalars)
    with pytest.raises(AssertionError, match="differ"):
        assert_all_same_bits(result, expected)
    assert_all_same_bits(broken("nothing")(*[torch.from_numpy(x) for x in arrays], scalars_of(case)), expected)


def _two_roots(v):
    return torch.sqrt(v), v.double().sqrt().float()


@pytest.mark.parametrize("roundings", [("nearest", "stochastic"), ("stochastic", "nearest")])
@pytest.mark.parametrize("grad_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("kind", ["ordinary", "special"])
def test_the_bits_written(kind, grad_dtype, roundings):
    case = HYPERPARAMETERS[1]
    w, g, m, v = (x[:3000] for x in inputs(kind))
    if grad_dtype == torch.float32:
        g = g * np.float32(1.0009765625)
    layout = ShardLayout((100, 60), (20, 3), (60, 57), 11, 11 + w.size)
    index = torch.arange(6000).view(100, 60)[20:80, 3:60].reshape(-1)[11 : 11 + w.size].tolist()
    values = reference.step_float32(w, g, m, v, **case)
    expected = []
    for stream, (value, rounding) in enumerate(zip(values, ("stochastic", *roundings), strict=True)):
        bits = reference.bits(value).tolist()
        if rounding == "nearest":
            expected.append([reference.nearest(b) for b in bits])
        else:
            noise = [reference.noise(9, case["t"], stream, "w", e) for e in index]
            expected.append([reference.stochastic(b, n) for b, n in zip(bits, noise, strict=True)])
    weight, exp_avg, exp_avg_sq = (torch.from_numpy(x).bfloat16() for x in (w, m, v))
    gradient = torch.from_numpy(g).to(grad_dtype)
    shard = ParamShard(weight, gradient, exp_avg, exp_avg_sq, key=noise_key(9, "w"), layouts=(layout,))
    adamw_sr_([shard], StepOptions(case["t"], scalars_of(case), *roundings))
    for tensor, bits in zip((weight, exp_avg, exp_avg_sq), expected, strict=True):
        assert tensor.view(torch.int16).numpy().view(np.uint16).tolist() == bits


def test_power_is_binary_powering_from_the_left():
    for base in (0.9, 0.999, 0.95):
        for exponent in (0, 1, 2, 3, 7, 1000, 2**31 + 3):
            assert power(base, exponent) == (reference.power(base, exponent) if exponent else 1.0)


@pytest.mark.parametrize("threads", [1, 2])
def test_flushed_subnormals_are_noticed_in_any_thread(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        require_gradual_underflow()
        assert torch.set_flush_denormal(True)
        with pytest.raises(RuntimeError, match="needs gradual underflow"):
            require_gradual_underflow()
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(before)
    require_gradual_underflow()


def test_flushing_in_the_other_threads_alone_is_noticed():
    # Threads that start while the mode is on inherit it; then the main thread's is switched off again.
    code = (
        "import torch; from nemo_sr.update import require_gradual_underflow; torch.set_num_threads(2); "
        "torch.set_flush_denormal(True); torch.ones(1 << 20).mul(2); torch.set_flush_denormal(False); "
        "require_gradual_underflow()"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert "needs gradual underflow" in result.stderr


def written_bits(inputs, step=None):
    """What the reference backend writes, its FP32 step exchanged for another where one is given."""
    weight, grad, exp_avg, exp_avg_sq = (tensor.clone() for tensor in inputs.tensors)
    layouts = (ShardLayout.whole(weight.shape),)
    shard = ParamShard(weight, grad, exp_avg, exp_avg_sq, noise_key(sharp_inputs.SEED, sharp_inputs.NAME), layouts)
    options = StepOptions(sharp_inputs.STEP, scalars_of(sharp_inputs.CASE), "nearest", "stochastic")
    with pytest.MonkeyPatch.context() as patch:
        if step is not None:
            patch.setattr(
                update,
                "adamw_float32",
                lambda w, g, m, v, s, maximize: step(w.float(), g.float(), m.float(), v.float(), s),
            )
        adamw_sr_([shard], options)
    tensors = {"weight": weight, "exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq}
    return {name: tensor.view(torch.int16).numpy().view(np.uint16) for name, tensor in tensors.items()}


@pytest.mark.parametrize("make", sharp_inputs.ALL.values(), ids=sharp_inputs.ALL)
def test_written_bits_on_inputs_where_an_ulp_shows(make):
    inputs = make()
    for name, bits in written_bits(inputs).items():
        assert np.array_equal(bits, inputs.expected[name]), name


@pytest.mark.parametrize(
    ("mistake", "make", "tensor"),
    [
        ("v: g*(g*c)", sharp_inputs.second_moments_on_the_edge, "exp_avg_sq"),
        ("v: fused", sharp_inputs.second_moments_on_the_edge, "exp_avg_sq"),
        ("m: fused", sharp_inputs.cancelling_weights, "weight"),
        ("d: fused", sharp_inputs.cancelling_weights, "weight"),
        ("w: fused", sharp_inputs.cancelling_weights, "weight"),
        ("reciprocal", sharp_inputs.cancelling_weights, "weight"),
    ],
)
def test_mistakes_of_an_ulp_show_in_the_written_bits(mistake, make, tensor):
    inputs = make()
    assert not np.array_equal(written_bits(inputs, broken(mistake))[tensor], inputs.expected[tensor])
