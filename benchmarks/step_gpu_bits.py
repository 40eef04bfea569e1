# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The bits of the Triton backend on a GPU against update.py on the CPU; benchmarks/step_gpu.py runs this first."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from nemo_sr import AdamWSR, ShardLayout
from nemo_sr.kernels.triton_backend import adamw_sr_triton_
from nemo_sr.noise import noise_key
from nemo_sr.update import ParamShard, StepOptions, StepScalars, adamw_sr_

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


def set_inputs(number: int, optimizer: AdamWSR, rate: Tensor | None = None, scale: Tensor | None = None) -> None:
    """Set the gradients, the learning rate and the gradients' scale of a step, in place where tensors are given."""
    lr, s = torch.tensor(1e-3 / (number + 1)), torch.tensor(0.5 + number)
    generator = torch.Generator().manual_seed(number)
    for param in optimizer.param_groups[0]["params"]:
        param.grad.copy_((torch.randn(param.shape, generator=generator) * 1e-3).bfloat16())
    if rate is None or scale is None:
        optimizer.param_groups[0]["lr"], optimizer.grad_scale = float(lr), float(s)
    else:
        rate.copy_(lr)
        scale.copy_(s)


def capture(optimizer: AdamWSR, device: torch.device, warm_up: Callable[[int], object]) -> torch.cuda.CUDAGraph:
    """Take two steps on a stream of their own, and capture the next one with gradients at other addresses."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for number in range(2):
            warm_up(number)
            optimizer.step()
    torch.cuda.current_stream(device).wait_stream(stream)
    for param in optimizer.param_groups[0]["params"]:
        param.grad = param.grad.clone()
    warm_up(2)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    return graph


def compare_in_a_graph(device: torch.device) -> None:
    """Replay a captured step with other gradients, learning rates and scales, and compare with the reference."""
    generator = torch.Generator().manual_seed(0)
    start = [(torch.randn(shape, generator=generator) * 0.02).bfloat16() for shape in [(300, 64), (1003,), (), (7, 9)]]
    optimizers = []
    rate, scale = torch.zeros((), device=device), torch.zeros((), device=device)
    for where, options in (
        (device, {"lr": rate, "backend": "triton", "capturable": True}),
        (torch.device("cpu"), {"backend": "reference"}),
    ):
        params = [torch.nn.Parameter(tensor.to(where, copy=True)) for tensor in start]
        optimizer = AdamWSR([(str(i), p) for i, p in enumerate(params)], **{**HYPER, **options})
        for number, param in enumerate(params):
            param.grad = torch.zeros_like(param)
            optimizer.initialize_state(param)
            # A step for each parameter; two of them pass 2^24, where FP32 would stop counting.
            optimizer.state[param]["step"].fill_((0, 2**24 - 3, 2**32 - 3, 2**24 - 1)[number])
        optimizers.append(optimizer)
    mine, reference = optimizers

    def inputs(number: int) -> None:
        set_inputs(number, mine, rate, scale)
        mine.grad_scale = scale

    graph = capture(mine, device, inputs)
    for number in range(8):
        if number >= 2:  # the first two were the warm-up
            set_inputs(number, mine, rate, scale)
            graph.replay()
        set_inputs(number, reference)
        reference.step()
    torch.cuda.synchronize()
    for one, other in zip(mine.param_groups[0]["params"], reference.param_groups[0]["params"], strict=True):
        states = [
            (p.detach(), *(o.state[p][name] for name in ("step", "exp_avg", "exp_avg_sq")))
            for o, p in ((mine, one), (reference, other))
        ]
        flat = ([tensor.cpu().reshape(-1).view(torch.uint8) for tensor in tensors] for tensors in states)
        if not all(torch.equal(a, b) for a, b in zip(*flat, strict=True)):
            sys.exit("The Triton backend must give the bits of update.py; replayed from a CUDA graph it does not.")
    print("Bits: equal to update.py in steps replayed from a CUDA graph, with changing learning rates.", flush=True)
