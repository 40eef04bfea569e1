#!/usr/bin/env python
# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Print docs/planning.md's tables: what fits for the larger models and every strategy, and the saving against O1.

Usage: python benchmarks/plan_table.py [CONFIG ...]
"""

from __future__ import annotations

import sys
import warnings

warnings.filterwarnings("ignore")

from nemo_sr.planning.command import GPT2_TOKENS  # noqa: E402
from nemo_sr.planning.comparison import compare_strategies, saving  # noqa: E402
from nemo_sr.planning.plan import GIB  # noqa: E402
from nemo_sr.planning.planner import Planner  # noqa: E402
from nemo_sr.planning.search import find_layouts  # noqa: E402
from nemo_sr.planning.stage import ModelFacts  # noqa: E402
from nemo_sr.planning.throughput import GPUS  # noqa: E402
from nemo_sr.training.config import compose_config  # noqa: E402
from nemo_sr.training.regimes import REGIMES  # noqa: E402

CONFIGS = ("gpt_neo_1.3b", "gpt_neo_2.7b", "gpt_neo_6.7b")
NUM_GPUS = (8, 16, 64)
MEMORIES = (40, 80)
RESERVE = 4


def fastest(planner, config, regime, memory):
    """Return the layouts that fit into `memory` GiB, the fastest first."""
    return find_layouts(
        planner, config, regime, regime.grad_dtypes[0], limit=(memory - RESERVE) * GIB, gpu=GPUS["a100"]
    )


def cell(config, found):
    """Return the fastest layout and what it needs, as a cell of a Markdown table."""
    if not found:
        return "none fits"
    best = found[0]
    layout = best.layout
    cut = f"{layout.tensor_parallel}x{layout.pipeline_parallel}x{layout.data_parallel}, {layout.micro_batch}"
    recompute = "" if layout.recompute is None else f", {layout.recompute}"
    rate = config.model.global_batch_size * config.model.encoder_seq_length / best.time.total
    return f"{cut}{recompute}: {best.largest.total / GIB:.1f} GiB, {rate / 1000:.0f}k"


def main():
    """Print the tables, a row as soon as it is known."""
    savings = []
    print("| model | GPUs | " + " | ".join(f"`{name}`" for name in REGIMES) + " |")
    print("|---" * (2 + len(REGIMES)) + "|")
    for name in sys.argv[1:] or CONFIGS:
        config = compose_config([f"--config-name={name}"])
        planner = Planner(ModelFacts(config.model, GPT2_TOKENS, fused_attention=True), config.model.global_batch_size)
        for num_gpus in NUM_GPUS:
            config.trainer.num_nodes = num_gpus // config.trainer.devices
            for memory in MEMORIES:
                found = {regime: fastest(planner, config, regime, memory) for regime in REGIMES.values()}
                cells = " | ".join(cell(config, layouts) for layouts in found.values())
                print(f"| {name} | {num_gpus} x {memory} GB | {cells} |", flush=True)
            o1 = found[REGIMES["adamw_amp"]]
            if o1:
                savings.append((name, num_gpus, o1[0].layout, compare_strategies(planner, o1[0].layout, config.optim)))
    print("\n| model | GPUs | layout, micro batch | " + " | ".join(f"`{name}`" for name in REGIMES), end="")
    print(" | SR against O1 | against O2 |")
    print("|---" * (5 + len(REGIMES)) + "|")
    for name, num_gpus, layout, needs in savings:
        sizes = " | ".join(f"{need.largest.total / GIB:.1f}" for need in needs)
        cut = f"{layout.tensor_parallel}x{layout.pipeline_parallel}x{layout.data_parallel}, {layout.micro_batch}"
        less = " | ".join(f"{saving(needs, 'adamw_sr', other):.0%}" for other in ("adamw_amp", "adamw"))
        recompute = "" if layout.recompute is None else f", {layout.recompute}"
        print(f"| {name} | {num_gpus} | {cut}{recompute} | {sizes} | {less} |", flush=True)


if __name__ == "__main__":
    main()
