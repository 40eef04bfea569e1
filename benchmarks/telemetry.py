# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What telemetry of the rounding adds to a training step, as a Markdown table.

    OMP_NUM_THREADS=1 python benchmarks/telemetry.py [--turns N]

Two copies of a GPT are stepped side by side in one process, one of them watched, in alternating order. What telemetry
adds to the optimizer's step is the median over turns of the difference, without and with a report (its collective and
its transfer included). The share is that of a whole training step, whose forward and backward pass runs in the same
process: (what it adds to every step + a report's share of the default interval) / (the step's time).
"""

import argparse
import statistics
import sys
import time
import warnings

import torch
from megatron_gpt import build_model, build_optimizer, is_rank, make_groups, mean_loss, megatron_on_cpu, run_on_ranks
from megatron_gpt import text as read_text

from nemo_sr.training.schema import TrainerConfig

MICRO_BATCHES = 2
MODELS = {
    "gpt_tiny_cpu": (16, []),
    "8 layers, 512 wide": (
        8,
        ["model.num_layers=8", "model.hidden_size=512", "model.num_attention_heads=8"],
    ),
}


def seconds(function, *args):
    """Return how long a call takes."""
    start = time.perf_counter()
    function(*args)
    return time.perf_counter() - start


def make_gradients(model, samples):
    """Run forward and backward pass over the micro batches of a step."""
    model.zero_grad_buffer()
    for part in samples.chunk(MICRO_BATCHES):
        mean_loss(model, part).backward()
    model.finish_grad_sync()


def measure(name, turns):
    """Return a row of the table."""
    from nemo_sr.training.rounding_probe import RoundingProbe

    batch, words = MODELS[name]
    copies = [build_model(*words) for _ in range(2)]
    optimizers = [build_optimizer(model) for model in copies]
    probe = RoundingProbe(optimizers[1].chained_optimizers)
    samples = read_text(copies[0].module.max_sequence_length)
    batches = iter(samples.split(batch))
    report = {"every step": [], "a report": []}
    passes, steps = [], []

    def step(number):
        optimizers[number].step()

    def reported_step(turn):
        probe.watch(turn + 1)
        optimizers[1].step()
        probe.collect()

    for turn in range(-2, turns):
        here = next(batches)
        taken = {}
        for number in sorted((0, 1), reverse=turn % 2 == 1):
            forward = seconds(make_gradients, copies[number], here)
            taken[number] = seconds(step, number)
            passes.append(forward)
        again = seconds(step, 1)  # the same gradients, with and without a report
        with_report = seconds(reported_step, turn + 2)
        if turn >= 0:
            steps.append(taken[0])
            report["every step"].append(taken[1] - taken[0])
            report["a report"].append(with_report - again)
    every, one = (statistics.median(times) for times in report.values())
    whole = statistics.median(passes) + statistics.median(steps)
    interval = TrainerConfig.__dataclass_fields__["telemetry_every_n_steps"].default
    share = (every + one / interval) / whole
    num_params = sum(param.numel() for param in copies[0].parameters())
    cells = [
        name,
        f"{num_params / 1e6:.1f}M",
        f"{whole * 1e3:.0f} ms",
        f"{statistics.median(steps) * 1e3:.2f} ms",
        f"{every * 1e3:+.2f} ms",
        f"{one * 1e3:+.1f} ms",
        f"{share:.2%}",
    ]
    return f"| {' | '.join(cells)} |"


def main():
    """Print the table, on one rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=15)
    turns = parser.parse_args().turns
    if not is_rank():
        run_on_ranks(1, *sys.argv[1:])
        return
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    with megatron_on_cpu():
        make_groups()
        print("| model | parameters | training step | optimizer's step | every step | a report | of a step, in all |")
        print("|---|---|---|---|---|---|---|")
        for name in MODELS:
            print(measure(name, turns), flush=True)


if __name__ == "__main__":
    main()
