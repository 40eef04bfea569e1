# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""A pipeline stage of the configured GPT as training builds it, on the meta device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from omegaconf import DictConfig, OmegaConf

from nemo_sr.models.gpt import build_gpt, transformer_config
from nemo_sr.planning.fused_attention import fuse_attention_


@dataclass(frozen=True)
class Layout:
    """How a job is cut over its ranks, and what bounds its activations."""

    tensor_parallel: int
    pipeline_parallel: int
    data_parallel: int
    micro_batch: int
    """Samples in one forward pass."""

    sequence_parallel: bool
    recompute: str | None
    """None, "selective" or "full": ``model.activations_checkpoint_granularity``."""

    @classmethod
    def from_config(cls, config: DictConfig) -> Layout:
        """Return the layout of a configuration that ``validate.check_layout`` lets through."""
        model = config.model
        tp, pp = model.tensor_model_parallel_size, model.pipeline_model_parallel_size
        return cls(
            tensor_parallel=tp,
            pipeline_parallel=pp,
            data_parallel=config.trainer.devices * config.trainer.num_nodes // (tp * pp),
            micro_batch=model.micro_batch_size,
            sequence_parallel=model.sequence_parallel,
            recompute=model.activations_checkpoint_granularity,
        )

    @property
    def num_ranks(self) -> int:
        """Ranks of the whole job."""
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel

    @property
    def end_stages(self) -> list[int]:
        """The first and the last pipeline stage."""
        return sorted({0, self.pipeline_parallel - 1})


@dataclass(frozen=True)
class ModelFacts:
    """What does not change with layout and strategy."""

    model: DictConfig
    """The keys of ``schema.ModelConfig``."""

    vocab_size: int
    """Tokens of the tokenizer, without padding."""

    fused_attention: bool
    """Whether attention keeps no scores, as Transformer Engine's does; else it is Megatron-core's own."""

    @property
    def recomputes_alike(self) -> bool:
        """Whether full recomputation treats every layer as the others, each on its own."""
        model = self.model
        return model.activations_checkpoint_method != "block" and model.activations_checkpoint_num_layers in (None, 1)

    def configured(self, layout: Layout, num_layers: int) -> DictConfig:
        """Return the model's keys under a layout, with another number of layers."""
        changes = {
            "num_layers": num_layers,
            "tensor_model_parallel_size": layout.tensor_parallel,
            "pipeline_model_parallel_size": layout.pipeline_parallel,
            "sequence_parallel": layout.sequence_parallel,
            "activations_checkpoint_granularity": layout.recompute,
            "transformer_engine": False,
        }
        return DictConfig(OmegaConf.merge(self.model, changes))


def build_stage(
    facts: ModelFacts, layout: Layout, *, num_layers: int, weights: torch.dtype, grads: torch.dtype, autocast: bool
) -> Any:
    """Return this rank's part of the GPT in Megatron-core's data parallelism, inside ``meta_rank``.

    Modules are Megatron-core's own, unfused, with torch's norms. The fused operations that a GPU runs keep the same
    tensors for the backward pass, but for attention, which :func:`fuse_attention_` stands in for.

    Args:
        facts: The model.
        layout: The parallel layout.
        num_layers: Layers of the whole model.
        weights: Type of the weights.
        grads: Type in which gradients are summed, `weights` or float32.
        autocast: Whether matrix products take FP32 as BF16.
    """
    model = facts.configured(layout, num_layers)
    config = transformer_config(model, on_cpu=True, params_dtype=weights, autocast=autocast)
    gpt = build_gpt(
        config,
        model,
        vocab_size=facts.vocab_size,
        on_cpu=True,
        is_initialized=False,
    )
    if facts.fused_attention:
        fuse_attention_(gpt)
    ddp_config = DistributedDataParallelConfig(
        use_distributed_optimizer=True, grad_reduce_in_fp32=grads == torch.float32
    )
    return DistributedDataParallel(config, ddp_config, gpt)
