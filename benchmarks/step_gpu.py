# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The optimizer step on a GPU: are the bits right, and what does it cost? Under five minutes; needs an NVIDIA GPU.

    python benchmarks/step_gpu.py

First every bit of the Triton backend is compared with update.py on the CPU, for ordinary and special values, layouts,
dtypes and roundings; any difference ends the run with a non-zero status. Then one large tensor and the parameters of
GPT-Neo 1.3B are stepped. The bound is the memory's: 14 bytes an element (weight, gradient and moments in, weight and
moments out), at the speed that a plain copy of the weights reaches on the same GPU in the same run. Aim: 90 % of it.

If torchao is installed, its compiled stochastic rounding is measured too.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from nemo_sr import AdamWSR, ShardLayout
from nemo_sr.kernels.triton_backend import adamw_sr_triton_, why_not_triton
from nemo_sr.noise import noise_key
from nemo_sr.update import ParamShard, StepOptions, StepScalars, adamw_sr_

BYTES = 14
REPETITIONS = 20
LARGE = 1 << 28
SECONDS = 270
COMPILING = 120
BF16, FP32 = torch.bfloat16, torch.float32
HYPER = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
TENSORS = ("weight", "grad", "exp_avg", "exp_avg_sq")
SPECIAL = (
    0x0000,
    0x8000,
    0x0001,
    0x8001,
    0x007F,
    0x0080,
    0x3F80,
    0xBF80,
    0x7F7F,
    0xFF7F,
    0x7F80,
    0xFF80,
    0x7FC0,
    0xFFFF,
)

LAYOUTS = {
    "one sixteenth of the columns": ShardLayout((512, 2048), (0, 128), (512, 128), 0, 512 * 128),
    "a part of them": ShardLayout((512, 2048), (0, 128), (512, 128), 1000, 50_000),
    "columns of odd width": ShardLayout((500, 611), (20, 3), (400, 57), 11, 20_011),
    "a flat range that starts oddly": ShardLayout((100_003,), (0,), (100_003,), 12_345, 99_999),
    "three dimensions": ShardLayout((9, 40, 64), (2, 3, 8), (5, 30, 48), 17, 7000),
    "beyond 2^35": ShardLayout((1 << 22, 1 << 15), (0, 0), (1 << 22, 1 << 15), (1 << 35) - 5000, (1 << 35) + 15_000),
}


def gpt_neo_1_3b() -> list[tuple[int, ...]]:
    """List the shapes of the parameters of GPT-Neo 1.3B."""
    h, layers = 2048, 24
    layer = [(h,), (h,), (h, h), (h, h), (h, h), (h, h), (h,), (h,), (h,), (4 * h, h), (4 * h,), (h, 4 * h), (h,)]
    return [(50257, h), (2048, h), *layer * layers, (h,), (h,)]


def ordinary(n: int) -> list[Tensor]:
    """Draw a weight, a gradient and moments as in training."""
    generator = torch.Generator().manual_seed(0)
    w, g, m, v = (torch.randn(n, generator=generator) * scale for scale in (0.02, 1e-3, 1e-3, 1e-3))
    return [w, g, m, v * v]


def all_exponents(n: int) -> list[Tensor]:
    """Draw all BF16 values alike, infinities among them."""
    generator = torch.Generator().manual_seed(1)
    bits = torch.randint(0, 65536, (4, n), generator=generator, dtype=torch.int32) << 16
    return list(bits.view(FP32).nan_to_num(nan=1.0))


def special() -> list[Tensor]:
    """List all quadruples of special values."""
    values = torch.tensor([bits << 16 if bits < 0x8000 else (bits << 16) - (1 << 32) for bits in SPECIAL])
    values = values.to(torch.int32).view(FP32)
    return [x.reshape(-1) for x in torch.meshgrid(*[values] * 4, indexing="ij")]


def make_shard(values: Sequence[Tensor], dtypes: Sequence[torch.dtype], layout: ShardLayout, shift: int) -> ParamShard:
    """Make a shard on the CPU, of values that lie ``shift`` elements into their storage."""
    tensors = []
    for value, dtype in zip(values, dtypes, strict=True):
        storage = torch.zeros(value.numel() + 8, dtype=dtype)
        tensors.append(storage[shift : shift + value.numel()].copy_(value))
    return ParamShard(*tensors, key=noise_key(1, str(layout)), layouts=(layout,))


def move(shard: ParamShard, device: torch.device) -> ParamShard:
    """Copy a shard, with its alignment, to a device."""
    copies = {}
    for name in TENSORS:
        tensor = getattr(shard, name)
        base = tensor if tensor._base is None else tensor._base
        copy = base.to(device, copy=True)
        copies[name] = copy[tensor.storage_offset() : tensor.storage_offset() + tensor.numel()]
    return dataclasses.replace(shard, **copies)


def cases() -> list[tuple[str, list[ParamShard], StepOptions]]:
    """List what is compared: a title, shards, and the step's options."""
    found = []
    values = {"ordinary": ordinary(200_003), "all exponents": all_exponents(200_003), "special": special()}
    roundings = [("nearest", "stochastic"), ("stochastic", "stochastic"), ("stochastic", "nearest"), ("nearest",) * 2]
    for (kind, x), grad_dtype, (number, pair) in itertools.product(values.items(), (BF16, FP32), enumerate(roundings)):
        scalars = StepScalars.of_step(7 + number, **HYPER, grad_scale=(1.0, 0.37)[number % 2])
        options = StepOptions(7 + number, scalars, *pair, maximize=number == 3)
        g = x[1] * 1.0009765625 if grad_dtype == FP32 else x[1]
        shard = make_shard((x[0], g, *x[2:]), (BF16, grad_dtype, BF16, BF16), ShardLayout.whole(x[0].shape), 0)
        found.append((f"{kind}, {str(grad_dtype)[6:]} gradients, {'/'.join(pair)}", [shard], options))
    options = StepOptions(2**32 - 1, StepScalars.of_step(2**32 - 1, **HYPER), "stochastic", "stochastic")
    for name, layout in LAYOUTS.items():
        shards = [make_shard(ordinary(layout.numel), [BF16] * 4, layout, shift) for shift in (0, 3)]
        found.append((name, shards, options))
    sizes = [make_shard(all_exponents(n), [BF16] * 4, ShardLayout.whole((n,)), 0) for n in range(71)]
    found.append(("sizes 0 to 70", sizes, options))
    for kind, x in values.items():
        found.append((f"{kind}, FP32", [make_shard(x, [FP32] * 4, ShardLayout.whole(x[0].shape), 0)], options))
    return found


def compare(device: torch.device) -> None:
    """Compare every bit with update.py; exit if one differs."""
    failures = 0
    for title, shards, options in cases():
        expected = [move(shard, torch.device("cpu")) for shard in shards]
        adamw_sr_(expected, options)
        scale = torch.tensor(options.scalars.grad_scale, dtype=FP32, device=device)
        on_device = dataclasses.replace(options, scalars=dataclasses.replace(options.scalars, grad_scale=scale))
        for how in (options, on_device):
            result = [move(shard, device) for shard in shards]
            adamw_sr_triton_(result, how)
            differ = sum(differing(a, b) for a, b in zip(result, expected, strict=True))
            if differ:
                failures += 1
                print(f"DIFFERENT: {title}: {differ} values", flush=True)
    if failures:
        sys.exit(f"The Triton backend must give the bits of update.py; {failures} cases differ. Do not use it here.")
    print(f"Bits: equal to update.py in all {len(cases())} cases.", flush=True)


def differing(one: ParamShard, other: ParamShard) -> int:
    """Count the values whose bits differ."""
    number = 0
    for name in TENSORS:
        a, b = getattr(one, name).cpu(), getattr(other, name)
        if a.dtype == FP32:
            # Payloads of NaN are outside the specification where nothing is rounded.
            a, b = a.nan_to_num(nan=7.0), b.nan_to_num(nan=7.0)
        integer = torch.int16 if a.dtype == BF16 else torch.int32
        number += int((a.view(integer) != b.view(integer)).sum())
    return number


def compare_beyond_32_bits(device: torch.device) -> None:
    """Step one tensor of more than 2^31 elements, and compare its ends."""
    n, edge = (1 << 31) + (1 << 20) + 8, 1 << 16
    if torch.cuda.mem_get_info(device)[0] < 10 * n:
        print("A tensor of more than 2^31 elements does not fit on this GPU: not compared.")
        return
    options = StepOptions(5, StepScalars.of_step(5, **HYPER), "nearest", "stochastic")
    pattern = ordinary(edge)
    tensors = [torch.zeros(n, dtype=BF16, device=device) for _ in TENSORS]
    for tensor, values in zip(tensors, pattern, strict=True):
        tensor[:edge] = tensor[n - edge :] = values.to(device)
    shard = ParamShard(*tensors, key=3, layouts=(ShardLayout.whole((n,)),))
    parts = [
        make_shard(pattern, [BF16] * 4, ShardLayout((n,), (0,), (n,), start, start + edge), 0)
        for start in (0, n - edge)
    ]
    parts = [dataclasses.replace(part, key=3) for part in parts]
    adamw_sr_(parts, options)
    adamw_sr_triton_([shard], options)
    for part, place in zip(parts, (slice(0, edge), slice(n - edge, n)), strict=True):
        there = dataclasses.replace(shard, **{name: getattr(shard, name)[place] for name in TENSORS})
        if differing(there, part):
            sys.exit("The Triton backend must give the bits of update.py; beyond 2^31 elements it does not.")
    print("Bits: equal at both ends of a tensor of more than 2^31 elements.", flush=True)


def milliseconds(step: Callable[[], object]) -> float:
    """Time a step on the device: the median of some, after two that are not counted."""
    times = []
    for number in range(REPETITIONS + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        step()
        end.record()
        torch.cuda.synchronize()
        if number >= 2:
            times.append(begin.elapsed_time(end))
    return statistics.median(times)


def make_params(shapes: Sequence[tuple[int, ...]], dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """Make parameters with gradients."""
    params = []
    for shape in shapes:
        param = torch.nn.Parameter(torch.randn(shape, dtype=dtype, device=device) * 0.02)
        param.grad = torch.randn(shape, dtype=dtype, device=device) * 1e-3
        params.append(param)
    return params


def shards_of(params: Sequence[Tensor]) -> list[ParamShard]:
    """Make what a backend takes, with moments of zeros."""
    return [
        ParamShard(
            p.detach().view(-1),
            p.grad.view(-1),
            torch.zeros_like(p.detach()).view(-1),
            torch.zeros_like(p.detach()).view(-1),
            key=noise_key(0, str(number)),
            layouts=(ShardLayout.whole(tuple(p.shape)),),
        )
        for number, p in enumerate(params)
    ]


def time_kernel(shapes, device, exp_avg="nearest", exp_avg_sq="stochastic"):
    """Time the backend alone."""
    shards = shards_of(make_params(shapes, BF16, device))
    options = StepOptions(9, StepScalars.of_step(9, **HYPER), exp_avg, exp_avg_sq)
    return milliseconds(lambda: adamw_sr_triton_(shards, options))


def time_optimizer(shapes, device):
    """Time the optimizer around it, as a training run calls it."""
    params = make_params(shapes, BF16, device)
    optimizer = AdamWSR([(str(i), p) for i, p in enumerate(params)], **HYPER, backend="triton")
    return milliseconds(optimizer.step)


def time_torch(shapes, device):
    """Time torch's fused AdamW on BF16: rounding to nearest."""
    optimizer = torch.optim.AdamW(make_params(shapes, BF16, device), **HYPER, fused=True)
    return milliseconds(optimizer.step)


def time_master(shapes, device):
    """Step FP32 masters: cast the gradients, step, cast the weights."""
    params, masters = make_params(shapes, BF16, device), make_params(shapes, FP32, device)
    optimizer = torch.optim.AdamW(masters, **HYPER, fused=True)
    weights = [p.detach() for p in params]

    def step():
        torch._foreach_copy_([p.grad for p in masters], [p.grad for p in params])
        optimizer.step()
        torch._foreach_copy_(weights, [p.detach() for p in masters])

    return milliseconds(step)


def time_torchao(shapes, device):
    """Time torchao's step, which torch.compile makes."""
    from torchao.optim import _AdamW

    optimizer = _AdamW(make_params(shapes, BF16, device), **HYPER, bf16_stochastic_round=True)
    return milliseconds(optimizer.step)


def time_copy(shapes, device):
    """Time a copy that moves as many bytes as the step: 7 bytes read and 7 written an element."""
    numel = sum(torch.Size(shape).numel() for shape in shapes) * BYTES // 4
    source, target = (torch.empty(numel, dtype=BF16, device=device).zero_() for _ in range(2))
    return milliseconds(lambda: target.copy_(source))


COPY, TORCH, MASTER, TORCHAO = (
    "copy of as many bytes",
    "torch AdamW fused, BF16",
    "torch AdamW fused, FP32 master",
    "torchao _AdamW, SR (compiled)",
)
# What is timed, and the bytes an element that it holds.
ROWS = {
    COPY: (time_copy, 7),
    "nemo_sr, kernel (SR on weight, exp_avg_sq)": (time_kernel, 8),
    "nemo_sr, kernel (SR on weight)": (lambda *where: time_kernel(*where, "nearest", "nearest"), 8),
    "nemo_sr, kernel (SR on all three)": (lambda *where: time_kernel(*where, "stochastic", "stochastic"), 8),
    "nemo_sr, AdamWSR.step()": (time_optimizer, 8),
    TORCH: (time_torch, 8),
    MASTER: (time_master, 20),
    TORCHAO: (time_torchao, 8),
}


def measure(title: str, shapes: Sequence[tuple[int, ...]], device: torch.device, deadline: float) -> None:
    """Print a table of times, of the bytes that a step must move over time, and of ratios."""
    numel = sum(torch.Size(shape).numel() for shape in shapes)
    print(f"\n{title}: {len(shapes)} tensors, {numel / 1e6:.0f} million elements\n")
    print("| step | ms | GB/s of 14 B | share of copy | time / torch fused BF16 | time / FP32 master |")
    print("|---|---|---|---|---|---|")
    times: dict[str, float] = {}
    notes = {}
    for name, (measured, held) in ROWS.items():
        # One tensor more while they are filled.
        needed = numel * (held + 2)
        # torchao compiles every shape anew, which takes minutes for a model.
        if name == TORCHAO and importlib.util.find_spec("torchao") is None:
            notes[name] = "torchao is not installed"
        elif time.monotonic() > deadline - (COMPILING if name == TORCHAO else 0):
            notes[name] = "no time was left"
        elif torch.cuda.mem_get_info(device)[0] < needed:
            notes[name] = f"needs {needed / 1e9:.0f} GB of memory"
        else:
            times[name] = measured(shapes, device)
            torch.cuda.empty_cache()
    copy, torch_, master = (times.get(name) for name in (COPY, TORCH, MASTER))
    for name in ROWS:
        if name in notes:
            print(f"| {name} | {notes[name]} | | | | |")
            continue
        ms = times[name]
        ratios = [f"{ms / other:.2f}" if other else "-" for other in (torch_, master)]
        share = f"{copy / ms:.0%}" if copy else "-"
        print(f"| {name} | {ms:.3f} | {numel * BYTES / ms / 1e6:.0f} | {share} | {ratios[0]} | {ratios[1]} |")
    sys.stdout.flush()


def main() -> None:
    """Compare, then measure."""
    if (reason := why_not_triton()) is not None:
        sys.exit(f"benchmarks/step_gpu.py needs a GPU that the Triton backend runs on; {reason}")
    if not torch.cuda.is_available():
        sys.exit("benchmarks/step_gpu.py measures a GPU; Triton's interpreter is on. Unset TRITON_INTERPRET.")
    begin = time.monotonic()
    device = torch.device("cuda", torch.cuda.current_device())
    triton = importlib.import_module("triton")
    print(f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}, Triton {triton.__version__}")
    compare(device)
    compare_beyond_32_bits(device)
    torch.cuda.empty_cache()
    measure("One tensor", [(LARGE,)], device, begin + SECONDS)
    measure("GPT-Neo 1.3B", gpt_neo_1_3b(), device, begin + SECONDS)
    print(f"\n{time.monotonic() - begin:.0f} s in all")


if __name__ == "__main__":
    main()
