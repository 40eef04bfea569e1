# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The optimizer step on a GPU: are the bits right, and what does it cost? Under five minutes; needs an NVIDIA GPU.

    python benchmarks/step_gpu.py

First every bit of the Triton backend is compared with update.py on the CPU, for ordinary and special values, layouts,
dtypes and roundings, and for steps replayed from a CUDA graph; any difference ends the run with a non-zero status. Then
one large tensor and the parameters of GPT-Neo 1.3B are stepped. The bound is the memory's: 14 bytes an element (weight,
gradient and moments in, weight and moments out), at the speed that a plain copy of the weights reaches on the same GPU
in the same run. Aim: 90 % of it.

If torchao is installed, its compiled stochastic rounding is measured too.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import torch
from step_gpu_bits import BF16, FP32, HYPER, capture, compare, compare_beyond_32_bits, compare_in_a_graph
from torch import Tensor

from nemo_sr import AdamWSR, ShardLayout
from nemo_sr.kernels.triton_backend import adamw_sr_triton_, why_not_triton
from nemo_sr.noise import noise_key
from nemo_sr.update import ParamShard, StepOptions, StepScalars

BYTES = 14
REPETITIONS = 20
LARGE = 1 << 28
SECONDS = 270
COMPILING = 120
PAUSE = 50_000_000  # clock cycles: some 30 ms


def gpt_neo_1_3b() -> list[tuple[int, ...]]:
    """List the shapes of the parameters of GPT-Neo 1.3B."""
    h, layers = 2048, 24
    layer = [(h,), (h,), (h, h), (h, h), (h, h), (h, h), (h,), (h,), (h,), (4 * h, h), (4 * h,), (h, 4 * h), (h,)]
    return [(50257, h), (2048, h), *layer * layers, (h,), (h,)]


def milliseconds(step: Callable[[], object]) -> float:
    """Time a step on the device: the median of some, after two that are not counted.

    The device waits first, so that the host's part is hidden, as it is behind the backward pass in training.
    """
    times = []
    for number in range(REPETITIONS + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(PAUSE)
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
    device_time = milliseconds(optimizer.step)
    begin = time.perf_counter()
    optimizer.step()
    print(f"(The host takes {1e3 * (time.perf_counter() - begin):.1f} ms for AdamWSR.step().)\n", flush=True)
    return device_time


def time_graph(shapes, device):
    """Time the optimizer's step replayed from a CUDA graph."""
    params = make_params(shapes, BF16, device)
    lr = torch.tensor(HYPER["lr"], device=device)
    optimizer = AdamWSR([(str(i), p) for i, p in enumerate(params)], **{**HYPER, "lr": lr}, capturable=True)
    return milliseconds(capture(optimizer, device, lambda number: None).replay)


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
    "nemo_sr, AdamWSR.step() in a CUDA graph": (time_graph, 10),
    TORCH: (time_torch, 8),
    MASTER: (time_master, 20),
    TORCHAO: (time_torchao, 8),
}


def measure(title: str, shapes: Sequence[tuple[int, ...]], device: torch.device, deadline: float) -> None:
    """Print a table of times, of the bytes that a step must move over time, and of ratios."""
    numel = sum(torch.Size(shape).numel() for shape in shapes)
    print(f"\n{title}: {len(shapes)} tensors, {numel / 1e6:.0f} million elements\n")
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
    print("| step | ms | GB/s of 14 B | share of copy | time / torch fused BF16 | time / FP32 master |")
    print("|---|---|---|---|---|---|")
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
    compare_in_a_graph(device)
    torch.cuda.empty_cache()
    measure("One tensor", [(LARGE,)], device, begin + SECONDS)
    measure("GPT-Neo 1.3B", gpt_neo_1_3b(), device, begin + SECONDS)
    print(f"\n{time.monotonic() - begin:.0f} s in all")


if __name__ == "__main__":
    main()
