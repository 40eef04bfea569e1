# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The Triton kernel in Triton's interpreter, against update.py: every bit, and no write outside the tensors.

test_triton_interpreter.py runs this file in a process with TRITON_INTERPRET=1, which Triton reads when it is imported.
The interpreter computes each operation exactly, so what the compiler makes of them is test_triton_ptx.py's matter.
"""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_triton_table import layouts as any_layouts

from nemo_sr import AdamWSR, ShardLayout
from nemo_sr.kernels import triton_backend
from nemo_sr.noise import noise_key
from nemo_sr.update import ParamShard, StepOptions, StepScalars, adamw_sr_
from test_update import HYPERPARAMETERS, inputs, scalars_of

BF16, FP32 = torch.bfloat16, torch.float32
TENSORS = ("weight", "grad", "exp_avg", "exp_avg_sq")
GUARD = 16


@pytest.fixture(autouse=True)
def _wide_blocks(monkeypatch):
    # The interpreter's time goes by operations, not by elements.
    monkeypatch.setattr(triton_backend, "BLOCK", 8192)


def make_shard(arrays, *, dtype=BF16, grad_dtype=BF16, layouts=None, name="w", shift=(0, 0, 0, 0)):
    """Make a shard; tensor i begins ``shift[i]`` elements after a multiple of 16 bytes, and lies between guards."""
    tensors = []
    for array, offset, wanted in zip(arrays, shift, (dtype, grad_dtype, dtype, dtype), strict=True):
        storage = torch.full((array.size + 2 * GUARD,), 3.0, dtype=wanted)
        assert storage.data_ptr() % 16 == 0
        tensor = storage[GUARD + offset : GUARD + offset + array.size]
        tensor.copy_(torch.from_numpy(array))
        tensors.append(tensor)
    layouts = (ShardLayout.whole((arrays[0].size,)),) if layouts is None else layouts
    return ParamShard(*tensors, key=noise_key(5, name), layouts=layouts)


def copy_of(shard):
    """Copy a shard with its guards and its alignment."""
    copies = {}
    for name in TENSORS:
        tensor = getattr(shard, name)
        storage = tensor._base.clone()
        copies[name] = storage[tensor.storage_offset() : tensor.storage_offset() + tensor.numel()]
    return dataclasses.replace(shard, **copies)


def bits_of(tensor):
    return tensor.view(torch.int16 if tensor.dtype == BF16 else torch.int32)


def assert_same_bits(shards, options):
    expected, result = [copy_of(shard) for shard in shards], [copy_of(shard) for shard in shards]
    adamw_sr_(expected, options)
    triton_backend.adamw_sr_triton_(result, options)
    assert_equal_shards(result, expected)


def assert_equal_shards(result, expected):
    """Compare every bit of the tensors and of the guards around them."""
    for number, (one, other) in enumerate(zip(result, expected, strict=True)):
        for name in TENSORS:
            same, wanted = getattr(one, name)._base, getattr(other, name)._base
            if wanted.dtype == FP32:
                # Payloads of NaN are outside the specification where nothing is rounded.
                same, wanted = same.nan_to_num(nan=7.0), wanted.nan_to_num(nan=7.0)
            differ = (bits_of(same) != bits_of(wanted)).sum()
            assert differ == 0, f"shard {number}, {name}: {differ} of {wanted.numel()} differ"


def options_of(case, roundings=("nearest", "stochastic")):
    return StepOptions(case["t"], scalars_of(case), *roundings, maximize=case.get("maximize", False))


def slices(arrays, *sizes):
    begin = 0
    for size in sizes:
        yield tuple(array[begin : begin + size] for array in arrays)
        begin += size


@pytest.mark.parametrize("case", HYPERPARAMETERS, ids=str)
@pytest.mark.parametrize("kind", ["ordinary", "all exponents", "special"])
def test_values(kind, case):
    assert_same_bits([make_shard(inputs(kind))], options_of(case))


@pytest.mark.parametrize("grad_dtype", [BF16, FP32])
@pytest.mark.parametrize(
    "roundings", [(a, b) for a in ("nearest", "stochastic") for b in ("nearest", "stochastic")], ids=str
)
def test_roundings_and_gradients(roundings, grad_dtype):
    for kind in ("all exponents", "special"):
        w, g, m, v = (x[:20_001] for x in inputs(kind))
        if grad_dtype == FP32:
            g = g * np.float32(1.0009765625)
        for case in HYPERPARAMETERS[1:3]:
            assert_same_bits([make_shard((w, g, m, v), grad_dtype=grad_dtype)], options_of(case, roundings))


@pytest.mark.parametrize("bits", [0x7F7F0000, 0x7F7F8000, 0x7F7FFFFF, 0x7F800000, 0x7F7E8000, 0x00000001, 0x80008000])
def test_values_at_the_edges_of_bf16(bits):
    # The weight becomes g * 1 + 0: with beta1 = 0, exp_avg is the gradient's very bits.
    g = np.full(4096, np.uint32(bits)).view(np.float32)
    zeros = np.zeros_like(g)
    scalars = StepScalars.of_step(1, lr=0.0, betas=(0.0, 0.5), eps=1.0, weight_decay=0.0)
    for rounding in ("nearest", "stochastic"):
        shard = make_shard((zeros, g, zeros, zeros), grad_dtype=FP32)
        assert_same_bits([shard], StepOptions(1, scalars, rounding, "stochastic"))


@pytest.mark.parametrize("grad_dtype", [BF16, FP32])
def test_fp32_parameters(grad_dtype):
    for kind in ("ordinary", "special"):
        arrays = inputs(kind)
        shards = [
            make_shard(part, dtype=FP32, grad_dtype=grad_dtype, shift=shift, name=str(shift))
            for part, shift in zip(
                slices(arrays, 9000, 5, 1003, 64, 300),
                [(0,) * 4, (1,) * 4, (3, 3, 3, 3), (4, 8, 0, 4), (0, 1, 0, 0)],
                strict=True,
            )
        ]
        assert_same_bits(shards, options_of(HYPERPARAMETERS[1]))


def test_sizes_and_starts():
    arrays = inputs("all exponents")
    sizes = list(range(71))
    shards = []
    for number, part in enumerate(slices(arrays, *sizes)):
        start = (0, 8, 3, 5)[number % 4]
        whole = ShardLayout((1000,), (0,), (1000,), start, start + sizes[number])
        # With shift == start the shard's middle is aligned; with others no part of it is.
        shift = ((0,) * 4, (start,) * 4, (0, 1, 2, 3))[number % 3]
        shards.append(make_shard(part, layouts=(whole,), name=f"p{number}", shift=shift))
    assert_same_bits(shards, options_of(HYPERPARAMETERS[1]))


LAYOUTS = {
    "columns, in groups": [ShardLayout((64, 512), (0, 128), (64, 256), 0, 64 * 256)],
    "columns, in groups, in part": [ShardLayout((64, 512), (7, 24), (50, 40), 13, 1900)],
    "columns, odd": [ShardLayout((100, 61), (20, 3), (60, 57), 11, 3000)],
    "columns, odd start, in groups otherwise": [ShardLayout((100, 64), (20, 4), (60, 48), 0, 2880)],
    "columns, odd width": [ShardLayout((100, 64), (20, 8), (60, 44), 0, 2640)],
    "columns of a matrix of odd width": [ShardLayout((100, 63), (20, 8), (60, 48), 0, 2880)],
    "one row": [ShardLayout((4, 512), (2, 128), (1, 256), 3, 200)],
    "three dimensions": [ShardLayout((9, 10, 16), (2, 3, 8), (5, 6, 8), 17, 229)],
    "single columns": [ShardLayout((300, 5), (0, 2), (300, 1), 1, 299)],
    "several layouts": [
        ShardLayout((64, 64), (0, 0), (32, 64), 100, 1000),
        ShardLayout((64, 64), (32, 0), (32, 64), 3, 99),
    ],
    "nothing, and a number": [ShardLayout((8, 8), (2, 2), (0, 3), 0, 0), ShardLayout((), (), (), 0, 1)],
    "beyond 2^35": [ShardLayout((1 << 22, 1 << 15), (0, 0), (1 << 22, 1 << 15), (1 << 35) - 500, (1 << 35) + 1500)],
    "columns beyond 2^35": [ShardLayout((1 << 22, 1 << 15), ((1 << 20) - 3, 64), (1 << 10, 128), 8, 1000)],
    "beyond 2^62": [ShardLayout((1 << 62,), (0,), (1 << 62,), (1 << 62) - 99, 1 << 62)],
    "rows of 2^31": [ShardLayout((3, 1 << 32), (0, 8), (3, 1 << 31), (1 << 31) - 64, (1 << 31) + 64)],
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name):
    layouts = tuple(LAYOUTS[name])
    arrays = next(slices(inputs("ordinary"), sum(layout.numel for layout in layouts)))
    shards = [make_shard(arrays, layouts=layouts, shift=shift) for shift in ((0,) * 4, (3,) * 4, (0, 0, 1, 0))]
    assert_same_bits(shards, options_of(HYPERPARAMETERS[1], ("stochastic", "stochastic")))


@settings(max_examples=50, deadline=None, database=None, derandomize=True)
@given(
    st.lists(st.tuples(any_layouts(), st.lists(st.integers(0, 7), min_size=4, max_size=4)), min_size=1, max_size=3),
    st.sampled_from(["ordinary", "all exponents", "special"]),
    st.sampled_from([(BF16, BF16), (BF16, FP32), (FP32, FP32), (FP32, BF16)]),
    st.tuples(*[st.sampled_from(["nearest", "stochastic"])] * 2),
    st.sampled_from(HYPERPARAMETERS),
    st.booleans(),
    st.integers(0, 30_000),
)
def test_anything(places, kind, dtypes, roundings, case, maximize, start):
    arrays = tuple(np.roll(array, start) for array in inputs(kind))
    parts = slices(arrays, *(layout.numel for layout, _ in places))
    shards = [
        make_shard(part, dtype=dtypes[0], grad_dtype=dtypes[1], layouts=(layout,), shift=shift, name=str(shift))
        for part, (layout, shift) in zip(parts, places, strict=True)
    ]
    assert_same_bits(shards, options_of(case | {"maximize": maximize}, roundings))


def test_a_large_tensor():
    n = 1 << 18
    arrays = inputs("ordinary", n)
    assert_same_bits([make_shard(arrays), make_shard(next(slices(arrays, 999)))], options_of(HYPERPARAMETERS[1]))


def test_blocks_as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(triton_backend, "BLOCK", 1024)
    shards = [make_shard(part) for part in slices(inputs("ordinary"), 8192 + 3 * 1024 + 16, 1031)]
    assert_same_bits(shards, options_of(HYPERPARAMETERS[1]))


@pytest.mark.parametrize("step", [1, 16, 2**31 - 1, 2**31, 2**32 - 1, 2**32 + 5])
def test_steps(step):
    arrays = next(slices(inputs("ordinary"), 100))
    assert_same_bits([make_shard(arrays)], options_of(HYPERPARAMETERS[1] | {"t": step}))


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("scale", [0.37, 0.0, float("inf"), float("nan"), 1e-40])
def test_the_gradients_scale_as_a_number_and_as_a_tensor(scale, maximize):
    arrays = next(slices(inputs("special"), 10_000))
    case = HYPERPARAMETERS[1] | {"scale": scale, "maximize": maximize}
    options = options_of(case)
    assert_same_bits([make_shard(arrays)], options)
    scalars = dataclasses.replace(options.scalars, grad_scale=torch.tensor(scale, dtype=FP32))
    assert_same_bits([make_shard(arrays)], dataclasses.replace(options, scalars=scalars))


def test_one_launch_for_shards_of_one_dtype(monkeypatch):
    launches = []
    launch = triton_backend._launch
    monkeypatch.setattr(
        triton_backend, "_launch", lambda shards, *rest: launches.append(len(shards)) or launch(shards, *rest)
    )
    parts = list(slices(inputs("ordinary"), 10, 20, 30, 0, 40))
    shards = [make_shard(part, name=str(len(part[0]))) for part in parts]
    shards.append(make_shard(parts[0], grad_dtype=FP32))
    shards.append(make_shard(parts[0], dtype=FP32, grad_dtype=FP32))
    assert_same_bits(shards, options_of(HYPERPARAMETERS[1]))
    assert launches == [4, 1, 1]


def test_tables_are_built_again_only_when_something_changes(monkeypatch):
    built = []
    for name in ("chunk_table", "piece_table"):
        make = getattr(triton_backend, name)
        monkeypatch.setattr(
            triton_backend, name, lambda *args, _make=make, _name=name: built.append(_name) or _make(*args)
        )
    options = options_of(HYPERPARAMETERS[1])
    arrays = next(slices(inputs("ordinary"), 777))
    layout = ShardLayout((778,), (0,), (778,), 0, 777)
    shard = make_shard(arrays, layouts=(layout,))
    triton_backend.adamw_sr_triton_([shard], options)
    assert built == ["chunk_table", "piece_table"]
    triton_backend.adamw_sr_triton_([shard], options)
    assert built == ["chunk_table", "piece_table"]
    built.clear()
    triton_backend.adamw_sr_triton_([dataclasses.replace(shard, grad=copy_of(shard).grad)], options)
    assert built == ["piece_table"]
    built.clear()
    triton_backend.adamw_sr_triton_([dataclasses.replace(shard, key=1)], options)
    assert built == ["piece_table"]
    built.clear()
    moved = ShardLayout((778,), (0,), (778,), 1, 778)
    triton_backend.adamw_sr_triton_([dataclasses.replace(shard, layouts=(moved,))], options)
    assert built == ["chunk_table", "piece_table"]


def test_the_optimizer_takes_the_same_steps_with_it():
    results = []
    for backend in ("reference", "triton"):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(13, 24), torch.nn.Linear(24, 5)).bfloat16()
        step = {"reference": adamw_sr_, "triton": triton_backend.adamw_sr_triton_}[backend]
        optimizer = AdamWSR(model.named_parameters(), lr=1e-2, seed=3, backend="reference")
        optimizer._backend = step
        for _ in range(3):
            model(torch.randn(7, 13, dtype=BF16)).square().sum().backward()
            optimizer.grad_scale = 0.5
            optimizer.step()
            optimizer.zero_grad()
        results.append([bits_of(p.detach()).clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_a_step_in_a_cuda_graph_is_refused(monkeypatch):
    shard = make_shard(next(slices(inputs("ordinary"), 100)))
    before = bits_of(shard.weight).clone()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="cannot be captured into a CUDA graph"):
        triton_backend.adamw_sr_triton_([shard], options_of(HYPERPARAMETERS[1]))
    assert torch.equal(bits_of(shard.weight), before)
