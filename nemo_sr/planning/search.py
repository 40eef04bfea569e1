# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Which layouts of a number of GPUs fit into their memory, the fastest first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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


def possible_layouts(config: DictConfig, regime: Regime, *, fused_attention: bool) -> Iterator[Layout]:
    """Return the layouts that Megatron-core could run, tensor parallelism within a node.

    Sequence parallelism goes with tensor parallelism where the strategy has it: it exchanges as much and keeps less.

    Args:
        config: A configuration; its trainer part says how many nodes of how many GPUs.
        regime: The strategy.
        fused_attention: Whether attention keeps no scores; computing it alone again then saves next to nothing.
    """
    num_ranks = config.trainer.devices * config.trainer.num_nodes
    recompute = (None, "full") if fused_attention else (None, "selective", "full")
    for tp in _divisors(config.trainer.devices):
        for pp in _divisors(config.model.num_layers):
            for micro_batch in MICRO_BATCHES:
                changes = {
                    "tensor_model_parallel_size": tp,
                    "pipeline_model_parallel_size": pp,
                    "micro_batch_size": micro_batch,
                    "sequence_parallel": tp > 1 and not regime.autocast,
                }
                changed = OmegaConf.merge(config, {"model": changes, "optim": {"name": regime.name}})
                try:
                    check_layout(DictConfig(changed))
                except ConfigError:
                    continue
                for granularity in recompute:
                    yield Layout(
                        tp, pp, num_ranks // (tp * pp), micro_batch, tp > 1 and not regime.autocast, granularity
                    )


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
    found = []
    for layout in possible_layouts(config, regime, fused_attention=planner.facts.fused_attention):
        if planner.state_of_first(layout, regime, grad_dtype).total > limit:
            continue
        largest = planner.largest(layout, regime, grad_dtype)
        if largest.total <= limit:
            time = estimate_step(planner, layout, regime, grad_dtype, gpu=gpu, gpus_per_node=config.trainer.devices)
            found.append(Candidate(layout, largest, time))
    return sorted(found, key=lambda candidate: (candidate.time.total, candidate.largest.total))
