# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What adamw_sr's step costs under Megatron-core beside Megatron's own Adam, and what a replica check costs.

    python benchmarks/megatron_step.py [--turns 15]

Two ranks over gloo, one thread each. Both optimizers have the same layout and take turns in one process; a ratio is the
median over the turns' own. A step is clipping, the update, and the gathering of weights.
"""

import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist
from megatron_gpt import (
    build_model,
    build_optimizer,
    is_rank,
    make_groups,
    mean_loss,
    megatron_on_cpu,
    run_on_ranks,
    text,
)

from nemo_sr import AdamWSR
from nemo_sr.megatron.replicas import ModelReplicas
from nemo_sr.replicas import hash_tensors

WORDS = ("model.num_layers=4", "model.hidden_size=512", "model.num_attention_heads=8")
LAYOUTS = {
    "DP 2, distributed optimizer": {},
    "DP 2": {"distributed": False},
    "TP 2, distributed optimizer": {"tp": 2},
}


def read_arguments():
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--turns", type=int, default=15)
    return parser.parse_args()


def seconds(function):
    """Time one call, until the last rank is through."""
    if dist.is_initialized():
        dist.barrier()
    start = time.perf_counter()
    function()
    if dist.is_initialized():
        dist.barrier()
    return time.perf_counter() - start


def in_turns(functions, turns):
    """Time the functions by turns; return a list of seconds for each."""
    times = [[] for _ in functions]
    for turn in range(-2, turns):
        for number in range(len(functions)):
            place = (number + turn) % len(functions)
            elapsed = seconds(functions[place])
            if turn >= 0:  # the first make state and touch memory
                times[place].append(elapsed)
    return times


def ratio(mine, other):
    """Return the median of the turns' ratios, and their quartiles, as text."""
    low, middle, high = statistics.quantiles([a / b for a, b in zip(mine, other, strict=True)], n=4)
    return f"{middle:.2f} | {low:.2f} to {high:.2f}"


def milliseconds(times):
    """Return the median as text."""
    return f"{1e3 * statistics.median(times):.1f}"


def make(name, layout):
    """Return a model with gradients, and the optimizer that steps it."""
    # Megatron's masters go with FP32 gradients, as its users have them.
    model = build_model(*WORDS, grad_in_fp32=name == "adam", **layout)
    generator = torch.Generator().manual_seed(0)
    for param in model.parameters():
        param.main_grad.copy_(torch.randn(param.shape, generator=generator) * 1e-3)
    return model, build_optimizer(model, name)


def compare_steps(turns):
    """Print a row for each layout."""
    for title, layout in LAYOUTS.items():
        make_groups(layout.get("tp", 1))
        sides = {name: make(name, layout) for name in ("adamw_sr", "adam")}
        ours, stock = in_turns([optimizer.step for _, optimizer in sides.values()], turns)
        size = sum(param.numel() for param in sides["adam"][0].parameters()) / 1e6
        if dist.get_rank() == 0:
            row = f"{title} | {size:.1f}M | {milliseconds(ours)} | {milliseconds(stock)} | {ratio(ours, stock)}"
            print(f"| {row} |", flush=True)


def compare_check(turns):
    """Print what a replica check costs beside a training step of the small GPT of gpt_tiny_cpu."""
    make_groups()
    model = build_model()
    optimizer = build_optimizer(model)
    samples = text(128).chunk(2)[dist.get_rank()]
    replicas = ModelReplicas([model])

    def train():
        model.zero_grad_buffer()
        mean_loss(model, samples[:8]).backward()
        model.finish_grad_sync()
        optimizer.step()

    check, step = in_turns([replicas.check, train], turns)
    if dist.get_rank() == 0:
        size = sum(param.numel() for param in model.parameters()) / 1e6
        row = f"gpt_tiny_cpu, {size:.1f}M, DP 2 | {milliseconds(check)} | {milliseconds(step)} | {ratio(check, step)}"
        print(f"| {row} |", flush=True)


def compare_hashing(turns):
    """Print what the check's hashes cost beside AdamWSR's step, on one process with the tensors of GPT-Neo 125M."""
    from step_cpu import gpt_neo_125m, make_params

    params = make_params(gpt_neo_125m())
    optimizer = AdamWSR(params, lr=1e-3)
    check, step = in_turns([lambda: hash_tensors(params), optimizer.step], turns)
    row = f"GPT-Neo 125M, hashes alone | {milliseconds(check)} | {milliseconds(step)} (AdamWSR) | {ratio(check, step)}"
    print(f"| {row} |", flush=True)


def main():
    """Print the tables."""
    arguments = read_arguments()
    if not is_rank():
        print("| layout | parameters a rank | adamw_sr, ms | Megatron's Adam, ms | ratio | quartiles |")
        print("|---|---|---|---|---|---|", flush=True)
        run_on_ranks(2, f"--turns={arguments.turns}")
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        compare_hashing(arguments.turns)
        return
    with megatron_on_cpu():
        torch.set_num_threads(1)
        compare_steps(arguments.turns)
        if dist.get_rank() == 0:
            print(
                "\n| replica check | check, ms | step, ms | check / step | quartiles |\n|---|---|---|---|---|",
                flush=True,
            )
        compare_check(arguments.turns)


if __name__ == "__main__":
    main()
