# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The plan for a configuration: what it needs, whether it fits, what else fits."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from omegaconf import DictConfig

from nemo_sr.models.description import ModelDescription
from nemo_sr.planning.comparison import PAPER_SAVING, Need, compare_strategies, saving
from nemo_sr.planning.planner import Planner, RankBytes
from nemo_sr.planning.search import Candidate, find_layouts
from nemo_sr.planning.stage import Layout, ModelFacts
from nemo_sr.planning.throughput import GPUS, StepTime, estimate_step

GIB = 2**30


@dataclass(frozen=True)
class Plan:
    """What a configuration needs, and what else fits."""

    description: ModelDescription
    fused_attention: bool
    tokens_per_step: int
    layout: Layout
    num_micro_batches: int
    stages: list[RankBytes]
    """The configured strategy's first, second and last pipeline stage."""

    needs: list[Need]
    """Every strategy under the configured layout."""

    saving_without_sequence_parallelism: float
    """Share of its bytes that adamw_sr saves against O1 with whole sequences on every rank."""

    name: str
    """``optim.name``."""

    variants: list[tuple[Layout, RankBytes]]
    """The configured strategy with and without sequence parallelism and recomputation."""

    memory: float
    """Bytes of a GPU."""

    reserve: float
    """Bytes of it that are not planned with."""

    time: StepTime
    candidates: list[Candidate]

    @property
    def own(self) -> Need:
        """What the configured strategy needs."""
        return next(need for need in self.needs if need.regime.name == self.name)

    def fits(self, largest: RankBytes) -> bool:
        """Tell whether a rank's bytes fit."""
        return largest.total <= self.memory - self.reserve

    def as_dict(self) -> dict[str, Any]:
        """Return the plan in numbers and texts, for JSON; sizes in bytes."""
        return {
            "model": {**asdict(self.description), "num_parameters": self.description.num_parameters},
            "fused_attention": self.fused_attention,
            "gpu_memory": self.memory,
            "reserve": self.reserve,
            "layout": asdict(self.layout),
            "num_micro_batches": self.num_micro_batches,
            "fits": self.fits(self.own.largest),
            "stages": [_rank_dict(rank) for rank in self.stages],
            "strategies": {
                need.regime.name: {
                    "paper": need.regime.label,
                    "grad_dtype": need.grad_dtype,
                    "sequence_parallel": need.layout.sequence_parallel,
                    "fits": self.fits(need.largest),
                    "saving_against_o1": saving(self.needs, need.regime.name, "adamw_amp"),
                    "saving_against_o2": saving(self.needs, need.regime.name, "adamw"),
                    **_rank_dict(need.largest),
                }
                for need in self.needs
            },
            "saving_against_o1_without_sequence_parallelism": self.saving_without_sequence_parallelism,
            "paper_saving_against_o1": PAPER_SAVING,
            "variants": [
                {"layout": asdict(layout), "fits": self.fits(largest), **_rank_dict(largest)}
                for layout, largest in self.variants
            ],
            "step": self._time_dict(self.time),
            "layouts": [
                {
                    "layout": asdict(one.layout),
                    **_rank_dict(one.largest),
                    "step": self._time_dict(one.time),
                }
                for one in self.candidates
            ],
        }

    def _time_dict(self, time: StepTime) -> dict[str, float]:
        return {**asdict(time), "total": time.total, "tokens_per_second": self.tokens_per_step / time.total}


def _rank_dict(rank: RankBytes) -> dict[str, Any]:
    return {
        "stage": rank.stage,
        "parameters": rank.parameters,
        **asdict(rank.state),
        "activations": rank.activations,
        "communication": rank.communication,
        "total": rank.total,
    }


def make_plan(
    config: DictConfig,
    vocab_size: int,
    *,
    fused_attention: bool,
    memory: float,
    reserve: float,
    gpu: str,
    num_candidates: int,
) -> Plan:
    """Plan a configuration that ``validate.check_layout`` lets through.

    Args:
        config: The configuration.
        vocab_size: Tokens of the tokenizer.
        fused_attention: Whether attention keeps no scores.
        memory: Bytes of a GPU.
        reserve: Bytes of it for what is not planned.
        gpu: A key of ``throughput.GPUS``.
        num_candidates: Layouts to return of those that fit; 0 looks for none.
    """
    planner = Planner(ModelFacts(config.model, vocab_size, fused_attention), config.model.global_batch_size)
    layout = Layout.from_config(config)
    needs = compare_strategies(planner, layout, config.optim)
    whole = compare_strategies(planner, replace(layout, sequence_parallel=False), config.optim)
    own = next(need for need in needs if need.regime.name == config.optim.name)
    regime, grad_dtype = own.regime, own.grad_dtype
    last = layout.pipeline_parallel - 1
    variants = []
    if num_candidates:
        for sequence_parallel in (False, True) if layout.tensor_parallel > 1 and not regime.autocast else (False,):
            for recompute in (None, "selective", "full"):
                one = replace(layout, sequence_parallel=sequence_parallel, recompute=recompute)
                variants.append((one, planner.largest(one, regime, grad_dtype)))
    candidates = []
    if num_candidates:
        candidates = find_layouts(planner, config, regime, grad_dtype, limit=int(memory - reserve), gpu=GPUS[gpu])[
            :num_candidates
        ]
    return Plan(
        description=ModelDescription.from_config(config.model, vocab_size),
        fused_attention=fused_attention,
        tokens_per_step=config.model.global_batch_size * config.model.encoder_seq_length,
        layout=layout,
        num_micro_batches=planner.num_micro_batches(layout),
        stages=[planner.rank_bytes(layout, stage, regime, grad_dtype) for stage in sorted({0, min(1, last), last})],
        needs=needs,
        saving_without_sequence_parallelism=saving(whole, "adamw_sr", "adamw_amp"),
        name=config.optim.name,
        variants=variants,
        memory=memory,
        reserve=reserve,
        time=estimate_step(planner, layout, regime, grad_dtype, gpu=GPUS[gpu], gpus_per_node=config.trainer.devices),
        candidates=candidates,
    )
