# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Bytes per rank of a strategy under a layout, each stage of the model built and run once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from nemo_sr.megatron.meta_platform import meta_rank
from nemo_sr.planning.activations import Pass, deepen, trace_pass
from nemo_sr.planning.stage import Layout, ModelFacts, build_stage
from nemo_sr.planning.state import Elements, StateBytes, count_elements, state_bytes
from nemo_sr.training.regimes import Regime

_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(frozen=True)
class RankBytes:
    """What a rank of one pipeline stage needs, in bytes: the data-parallel rank that needs most."""

    stage: int
    parameters: int
    """Number of weights, padding of the buffer left out."""

    state: StateBytes
    activations: int
    """The most at any time, of all micro batches in flight, without `received`."""

    buffers: int
    """Megatron-core's global memory buffer: gathered sequences, attention scores."""

    received: int
    """Activations and gradients from neighbouring stages."""

    one_pass: Pass
    """A micro batch's forward and backward pass."""

    @property
    def communication(self) -> int:
        """Buffers and what comes from other stages."""
        return self.buffers + self.received

    @property
    def total(self) -> int:
        """Everything."""
        return self.state.total + self.activations + self.communication


class Planner:
    """Bytes per rank of one model under any strategy and layout.

    Args:
        facts: The model.
        global_batch: Samples in an optimizer step, over all ranks.
    """

    def __init__(self, facts: ModelFacts, global_batch: int) -> None:
        self.facts = facts
        self.global_batch = global_batch
        self._elements: dict[Any, Elements] = {}
        self._passes: dict[Any, Pass] = {}

    def num_micro_batches(self, layout: Layout) -> int:
        """Return the micro batches in a step on one rank."""
        return int(self.global_batch // (layout.micro_batch * layout.data_parallel))

    def elements(self, layout: Layout, stage: int) -> Elements:
        """Count what a stage has of the whole model."""
        key = (layout.tensor_parallel, layout.pipeline_parallel, layout.data_parallel, stage)
        if key not in self._elements:
            with meta_rank(
                tensor_parallel=layout.tensor_parallel,
                pipeline_parallel=layout.pipeline_parallel,
                data_parallel=layout.data_parallel,
                stage=stage,
            ):
                ddp = build_stage(
                    self.facts,
                    layout,
                    num_layers=self.facts.model.num_layers,
                    weights=torch.bfloat16,
                    grads=torch.bfloat16,
                    autocast=False,
                )
                self._elements[key] = count_elements(ddp)
        return self._elements[key]

    def one_pass(self, layout: Layout, stage: int, regime: Regime) -> Pass:
        """Return a micro batch's passes through a stage."""
        # The first, a middle and the last of three stages, or of two, stand for those of more.
        last = layout.pipeline_parallel - 1
        num_stages = min(layout.pipeline_parallel, 3 if 0 < stage < last else 2)
        short = replace(layout, pipeline_parallel=num_stages, data_parallel=1)
        place = num_stages - 1 if stage == last else min(stage, 1)
        num_layers = self.facts.model.num_layers // layout.pipeline_parallel
        # Layers come in pairs in GPT-Neo: one with a window, one without.
        few = min(num_layers, 2 + num_layers % 2)
        if layout.recompute == "full" and not self.facts.recomputes_alike:
            few = num_layers
        shallow = self._trace(short, place, few, regime)
        if num_layers == few:
            return shallow
        return deepen(shallow, self._trace(short, place, few + 2, regime), (num_layers - few) // 2)

    def _trace(self, layout: Layout, stage: int, num_layers: int, regime: Regime) -> Pass:
        key = (layout, stage, num_layers, regime.weights, regime.autocast)
        if key not in self._passes:
            self._passes[key] = trace_pass(
                self.facts,
                layout,
                stage=stage,
                num_layers=num_layers * layout.pipeline_parallel,
                weights=_DTYPES[regime.weights],
                autocast=regime.autocast,
            )
        return self._passes[key]

    def rank_bytes(
        self, layout: Layout, stage: int, regime: Regime, grad_dtype: str, data_rank: int | None = None
    ) -> RankBytes:
        """Return what a rank needs.

        Args:
            layout: The layout.
            stage: The pipeline stage.
            regime: The strategy.
            grad_dtype: Type in which its gradients are summed.
            data_rank: The data-parallel rank; None for the one that needs most.
        """
        elements = self.elements(layout, stage)
        if data_rank is None:
            data_rank = max(range(len(elements.shards)), key=lambda rank: elements.shards[rank])
        one_pass = self.one_pass(layout, stage, regime)
        # The one-forward-one-backward schedule: a stage runs ahead of its last by the stages between.
        in_flight = min(layout.pipeline_parallel - stage, self.num_micro_batches(layout))
        received = one_pass.received + (in_flight - 1) * one_pass.received_activations
        alive = (in_flight - 1) * one_pass.saved + one_pass.peak
        return RankBytes(
            stage=stage,
            parameters=elements.parameters,
            state=state_bytes(elements, regime, grad_dtype, data_rank),
            activations=alive - received,
            buffers=one_pass.buffers,
            received=received,
            one_pass=one_pass,
        )

    def state_of_first(self, layout: Layout, regime: Regime, grad_dtype: str) -> StateBytes:
        """Return what the first stage holds from step to step, which is quick to find."""
        return state_bytes(self.elements(layout, 0), regime, grad_dtype, 0)

    def largest(self, layout: Layout, regime: Regime, grad_dtype: str) -> RankBytes:
        """Return what the rank needs that needs most: a stage between needs less than the first."""
        ranks = [self.rank_bytes(layout, stage, regime, grad_dtype) for stage in layout.end_stages]
        return max(ranks, key=lambda rank: rank.total)
