# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Bytes that a rank holds from step to step: weights, gradients, moments, masters. Exact, padding included."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer, Range

from nemo_sr.training.regimes import Regime

BYTES = {"bf16": 2, "fp32": 4, "none": 0}


@dataclass(frozen=True)
class Elements:
    """What a rank has of a model, in elements."""

    parameters: int
    """Without padding."""

    buffer: int
    """Of Megatron-core's contiguous buffers of weights and of gradients each, padding included."""

    shards: tuple[int, ...]
    """Parameters that the distributed optimizer steps on each data-parallel rank."""


@dataclass(frozen=True)
class StateBytes:
    """What a rank holds from step to step, in bytes."""

    weights: int
    gradients: int
    moments: int
    masters: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.gradients + self.moments + self.masters


def count_elements(ddp: Any) -> Elements:
    """Count what a rank has of a model, wrapped in Megatron-core's data parallelism for the distributed optimizer.

    The shards are those that Megatron-core's DistributedOptimizer cuts.
    """
    buffers = [*ddp.buffers, *ddp.expert_parallel_buffers]
    num_ranks = ddp.dp_cp_group.size()
    shards = [0] * num_ranks
    for buffer in buffers:
        for bucket in buffer.buckets:
            size = bucket.grad_data.numel() // num_ranks
            for rank in range(num_ranks):
                start = bucket.offset + rank * size
                owned = DistributedOptimizer._build_model_gbuf_param_range_map(
                    buffer.param_index_map, Range(start, start + size), bucket.offset
                )
                shards[rank] += sum(ranges["param"].size for ranges in owned.values())
    return Elements(
        parameters=sum(param.numel() for param in ddp.module.parameters()),
        buffer=sum(buffer.numel for buffer in buffers),
        shards=tuple(shards),
    )


def state_bytes(elements: Elements, regime: Regime, grad_dtype: str, data_rank: int) -> StateBytes:
    """Return the bytes of a strategy's tensors on one data-parallel rank.

    Args:
        elements: What the rank's pipeline stage has.
        regime: The strategy.
        grad_dtype: Type in which gradients are summed, one of ``regime.grad_dtypes``.
        data_rank: The data-parallel rank.
    """
    shard = elements.shards[data_rank]
    return StateBytes(
        weights=elements.buffer * BYTES[regime.weights],
        gradients=elements.buffer * BYTES[grad_dtype],
        moments=2 * shard * BYTES[regime.moments],
        masters=shard * BYTES[regime.master],
    )
