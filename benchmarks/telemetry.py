# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What telemetry of the rounding adds to a training step, as a Markdown table.

    OMP_NUM_THREADS=1 python benchmarks/telemetry.py [--turns N]

A GPT takes training steps in one process, every second one with a report. Telemetry is all in hooks around the inner
optimizer's step and in the call that collects a report, so its time is taken by clocks before and after those, within
the step that it is compared with. All times are medians over the turns; the share is that of a whole training step:
(what every step has + a report / the default interval) / the step without either.
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
    "8 layers, 512 wide": (8, ["model.num_layers=8", "model.hidden_size=512", "model.num_attention_heads=8"]),
}


class Clock:
    """Adds up the time between its starts and stops."""

    def __init__(self):
        self.total = 0.0

    def start(self, *args):
        """Start."""
        self.total -= time.perf_counter()

    def stop(self, *args):
        """Stop."""
        self.total += time.perf_counter()


def watch(optimizer, clock):
    """Attach a probe between two pairs of hooks that hold the clock."""
    from nemo_sr.training.rounding_probe import RoundingProbe

    inner = optimizer.chained_optimizers[0].optimizer
    inner.register_step_pre_hook(clock.start)
    inner.register_step_post_hook(clock.start)
    probe = RoundingProbe(optimizer.chained_optimizers)
    inner.register_step_pre_hook(clock.stop)
    inner.register_step_post_hook(clock.stop)
    return probe


def measure(name, turns):
    """Return a row of the table."""
    batch, words = MODELS[name]
    model = build_model(*words)
    optimizer = build_optimizer(model)
    clock = Clock()
    probe = watch(optimizer, clock)
    batches = iter(read_text(model.module.max_sequence_length).split(batch))
    taken = {"step": [], False: [], True: []}
    for turn in range(-2, 2 * turns):
        reports = turn % 2 == 1
        clock.total = 0.0
        begin = time.perf_counter()
        model.zero_grad_buffer()
        for part in next(batches).chunk(MICRO_BATCHES):
            mean_loss(model, part).backward()
        model.finish_grad_sync()
        if reports:
            probe.watch(turn)
        optimizer.step()
        if reports:
            clock.start()
            probe.collect()
            clock.stop()
        if turn >= 0:
            taken["step"].append(time.perf_counter() - begin - clock.total)
            taken[reports].append(clock.total)
    step, every, report = (statistics.median(times) for times in taken.values())
    interval = TrainerConfig.__dataclass_fields__["telemetry_every_n_steps"].default
    share = (every + (report - every) / interval) / step
    size = f"{sum(param.numel() for param in model.parameters()) / 1e6:.1f}M"
    cells = [name, size, *(f"{seconds * 1e3:.2f} ms" for seconds in (step, every, report - every)), f"{share:.2%}"]
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
        print("| model | parameters | training step | every step | a report | of a step, in all |")
        print("|---|---|---|---|---|---|")
        for name in MODELS:
            print(measure(name, turns), flush=True)


if __name__ == "__main__":
    main()
