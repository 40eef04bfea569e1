# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Which layouts of a number of GPUs fit into their memory, the fastest first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from omegaconf import DictConfig, OmegaConf

from nemo_sr.planning.planner import Planner, RankBytes
from nemo_sr.planning.stage import Layout
from nemo_sr.planning.throughput import Gpu, StepTime, estimate_step
from nemo_sr.training.config import ConfigError
from nemo_sr.training.regimes import Regime
from nemo_sr.training.validate import check_layout

MICRO_BATCHES = (1, 2, 4, 8)


@dataclass(frozen=True)
class Candidate:
    """A layout that fits."""

    layout: Layout
    largest: RankBytes
    time: StepTime


def possible_layouts(config: DictConfig, regime: Regime) -> Iterator[Layout]:
    """Return the layouts that Megatron-core could run, tensor parallelism within a node, without recomputation.

    Sequence parallelism goes with tensor parallelism where the strategy has it: it exchanges as much and keeps less.

    Args:
        config: A configuration; its trainer part says how many nodes of how many GPUs.
        regime: The strategy.
    """
    num_ranks = config.trainer.devices * config.trainer.num_nodes
    for tp in _divisors(config.trainer.devices):
        for pp in _divisors(config.model.num_layers):
            for micro_batch in MICRO_BATCHES:
                is_sequence_parallel = tp > 1 and not regime.autocast
                changes = {
                    "tensor_model_parallel_size": tp,
                    "pipeline_model_parallel_size": pp,
                    "micro_batch_size": micro_batch,
                    "sequence_parallel": is_sequence_parallel,
                }
                changed = OmegaConf.merge(config, {"model": changes, "optim": {"name": regime.name}})
                try:
                    check_layout(DictConfig(changed))
                except ConfigError:
                    continue
                yield Layout(tp, pp, num_ranks // (tp * pp), micro_batch, is_sequence_parallel, None)


def _divisors(number: int) -> list[int]:
    return [candidate for candidate in range(1, number + 1) if number % candidate == 0]


def find_layouts(
    planner: Planner,
    config: DictConfig,
    regime: Regime,
    grad_dtype: str,
    *,
    limit: int,
    gpu: Gpu,
) -> list[Candidate]:
    """Return the layouts that fit, the fastest first; of equal ones that which needs less.

    Args:
        planner: The model.
        config: Its configuration.
        regime: The strategy.
        grad_dtype: Type in which gradients are summed.
        limit: Bytes that a rank may need.
        gpu: What it runs on.
    """
    # Recomputation costs time, so the least that fits; fused attention leaves little for "selective" to save.
    ways = (None, "full") if planner.facts.fused_attention else (None, "selective", "full")
    found = []
    for base in possible_layouts(config, regime):
        if planner.state_of_first(base, regime, grad_dtype).total > limit:
            continue
        for layout in (replace(base, recompute=way) for way in ways):
            largest = planner.largest(layout, regime, grad_dtype)
            if largest.total <= limit:
                time = estimate_step(planner, layout, regime, grad_dtype, gpu=gpu, gpus_per_node=config.trainer.devices)
                found.append(Candidate(layout, largest, time))
                break
    return sorted(found, key=lambda candidate: (candidate.time.total, candidate.largest.total))
