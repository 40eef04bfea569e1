# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What one optimizer step costs on this CPU, for AdamWSR and for public optimizers side by side, as Markdown tables.

    pip install torchao adv_optm torch-optimi      (those that are missing are left out)
    python benchmarks/step_cpu.py [--threads 2] [--repetitions 15] [--compile]

Each rival is timed in turns with AdamWSR, in one process: a ratio is the median over the turns' own ratios, between
their quartiles, so that what else the machine does strikes both sides. Milliseconds are medians too. torchao's step is
meant to be compiled, which takes minutes: --compile does so, and times that row alone.
"""

import argparse
import os
import statistics
import sys
import time
from functools import partial

os.environ["TORCHDYNAMO_DISABLE"] = str(int("--compile" not in sys.argv))  # read when torch is imported

import torch
from peers import find

from nemo_sr import AdamWSR
from nemo_sr.kernels import cpu_backend

BARS = {"torch AdamW fused, BF16": 1.1, "FP32 master, torch AdamW fused": 0.6}
OPTIONS = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1}


def gpt_neo_125m():
    """Shapes of GPT-Neo 125M's parameters, in order."""
    d = 768
    layer = [(d,), (d,), (d, d), (d, d), (d, d), (d, d), (d,), (d,), (d,), (4 * d, d), (4 * d,), (d, 4 * d), (d,)]
    return [(50257, d), (2048, d), *(layer * 12), (d,), (d,)]


LISTS = {"32M": [(1 << 25,)], "125M": gpt_neo_125m()}


def read_arguments():
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--compile", action="store_true", help="compile torchao's step, and time that row alone")
    parser.add_argument("--only", choices=[*LISTS], help="one list of parameters instead of both")
    return parser.parse_args()


def make_params(shapes):
    """Make BF16 parameters with gradients."""
    generator = torch.Generator().manual_seed(0)
    params = []
    for shape in shapes:
        param = torch.nn.Parameter((torch.randn(shape, generator=generator) * 0.02).bfloat16())
        param.grad = torch.randn(shape, generator=generator).mul_(1e-3).bfloat16()
        params.append(param)
    return params


def ours(shapes, path=None, **options):
    """Return AdamWSR's step, on one path of the library if it is named."""
    optimizer = AdamWSR(make_params(shapes), backend="cpu", **OPTIONS, **options)
    if path:
        optimizer._backend = partial(cpu_backend.step_on, path=path)
    return optimizer.step


def plain_copy(shapes):
    """Return a copy of as many bytes as a step moves."""
    # Half read, half written, of the 8 + 6 bytes that a step moves for each parameter.
    source = torch.ones(7 * sum(torch.Size(shape).numel() for shape in shapes), dtype=torch.uint8)
    target = torch.zeros_like(source)
    return lambda: target.copy_(source)


def fused(shapes):
    """Return torch's fused AdamW step on BF16, which rounds to nearest."""
    return torch.optim.AdamW(make_params(shapes), fused=True, **OPTIONS).step


def master(shapes):
    """Return a step on FP32 copies: cast the gradients, step, cast the weights."""
    params = make_params(shapes)
    weights, grads = [param.data for param in params], [param.grad for param in params]
    masters = [torch.nn.Parameter(weight.float()) for weight in weights]
    for copy in masters:
        copy.grad = torch.zeros_like(copy)
    optimizer = torch.optim.AdamW(masters, fused=True, **OPTIONS)

    @torch.no_grad()
    def step():
        torch._foreach_copy_([copy.grad for copy in masters], grads)
        optimizer.step()
        torch._foreach_copy_(weights, masters)

    return step


def rivals(compiled):
    """Return {name: make(shapes)} for those that are installed."""
    found = {}
    if torchao := find("torchao.optim"):
        name = "torchao _AdamW SR, " + ("compiled" if compiled else "eager")
        found[name] = lambda shapes: torchao._AdamW(make_params(shapes), bf16_stochastic_round=True, **OPTIONS).step
    if compiled:
        return found
    found = {
        "copy of the same bytes": plain_copy,
        "torch AdamW fused, BF16": fused,
        "FP32 master, torch AdamW fused": master,
        **found,
    }
    if optimi := find("optimi"):
        found["optimi AdamW, Kahan"] = lambda shapes: optimi.AdamW(make_params(shapes), kahan_sum=True, **OPTIONS).step
    if adv_optm := find("adv_optm"):
        found["adv_optm AdamW_adv SR"] = lambda shapes: (
            adv_optm.AdamW_adv(make_params(shapes), stochastic_rounding=True, **OPTIONS).step
        )
    return found


def seconds(step):
    """Time one step."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def in_turns(mine, other, repetitions):
    """Time both by turns, five at least and then for a minute at most; return the lists of seconds."""
    times = ([], [])
    for step in (mine, other):  # makes state, compiles, touches memory
        step()
    begin = time.perf_counter()
    for turn in range(repetitions):
        order = (0, 1) if turn % 2 else (1, 0)
        for side in order:
            times[side].append(seconds((mine, other)[side]))
        if turn >= 4 and time.perf_counter() - begin > 60:
            break
    return times


def row(name, mine, other):
    """Format one row of a table."""
    ratios = [a / b for a, b in zip(mine, other, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    bar = f"{'met' if middle <= BARS[name] else 'MISSED'} (<= {BARS[name]})" if name in BARS else ""
    milliseconds = (1e3 * statistics.median(times) for times in (mine, other))
    return "| {} | {:.1f} | {:.1f} | {:.2f} | {:.2f} to {:.2f} | {} |".format(
        name, *milliseconds, middle, low, high, bar
    )


def main():
    """Print the tables."""
    arguments = read_arguments()
    repetitions = arguments.repetitions
    torch.set_num_threads(arguments.threads)
    if reason := cpu_backend.why_not_cpu():
        sys.exit(f"The native CPU backend cannot run: {reason}")
    paths = cpu_backend.load(cpu_backend.LIBRARY).paths
    print(
        f"torch {torch.__version__}, {arguments.threads} threads of {os.cpu_count()} processors, "
        f"path {paths[-1]} (this processor runs {', '.join(paths)}), up to {repetitions} turns a row\n"
    )
    for title, shapes in LISTS.items():
        if arguments.only not in (None, title):
            continue
        numel = sum(torch.Size(shape).numel() for shape in shapes)
        print(f"{numel / 1e6:.1f}M parameters in {len(shapes)} tensors; AdamWSR with SR on weight and exp_avg_sq\n")
        print("| rival | AdamWSR, ms | rival, ms | AdamWSR / rival | quartiles | bar |\n|---|---|---|---|---|---|")
        step = ours(shapes)
        for name, make in rivals(arguments.compile).items():
            print(row(name, *in_turns(step, make(shapes), repetitions)), flush=True)
        print()
        if arguments.compile:
            continue
        print("| AdamWSR | ms | torch fused, ms | ratio | quartiles | |\n|---|---|---|---|---|---|")
        del step
        other = fused(shapes)
        for path in paths:
            print(row(f"path {path}", *in_turns(ours(shapes, path), other, repetitions)), flush=True)
        for exp_avg, exp_avg_sq in (("nearest", "nearest"), ("stochastic", "stochastic")):
            variant = ours(shapes, exp_avg_rounding=exp_avg, exp_avg_sq_rounding=exp_avg_sq)
            print(
                row(f"exp_avg {exp_avg}, exp_avg_sq {exp_avg_sq}", *in_turns(variant, other, repetitions)), flush=True
            )
        print()


if __name__ == "__main__":
    main()
