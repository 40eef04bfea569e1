# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Norms in plain torch that work under sequence parallelism, and Megatron-core's own layers with them.

Without Transformer Engine and Apex, Megatron-core's norm is WrappedTorchNorm, which stops under sequence parallelism:
each tensor-parallel rank then sees a part of every sequence only, so a norm's gradient is a sum over these ranks.
Megatron-core's finalize_model_grads makes that sum for weights that are marked ``sequence_parallel``.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.transformer.torch_norm import WrappedTorchNorm

_NORMS = {"LayerNorm": torch.nn.LayerNorm, "RMSNorm": torch.nn.RMSNorm}
_UNSUPPORTED = ("layernorm_zero_centered_gamma", "persist_layer_norm", "memory_efficient_layer_norm")


class TorchNorm:
    """Makes torch's LayerNorm or RMSNorm, as the configuration says, with weights marked for sequence parallelism.

    It is called as Megatron-core calls a norm of a layer specification.

    Args:
        config: Megatron-core's TransformerConfig.
        hidden_size: Elements of the last axis, which is normalised.
        eps: Added to the variance, or to the mean of squares.

    Raises:
        ValueError: the configuration asks for another norm, or for what torch's norms do not have.
    """

    def __new__(cls, config: Any, hidden_size: int, eps: float = 1e-5) -> Any:
        """Return the norm, a torch module."""
        if config.normalization not in _NORMS:
            raise ValueError(
                f"normalization must be one of {', '.join(_NORMS)} without Transformer Engine and Apex; it is "
                f"{config.normalization!r}. Choose one of these, or install Transformer Engine."
            )
        for name in _UNSUPPORTED:
            if getattr(config, name):
                raise ValueError(
                    f"{name} must be False without Transformer Engine and Apex, since torch's norms do not have it; it "
                    "is True. Set it to False, or install Transformer Engine."
                )
        norm = _NORMS[config.normalization](hidden_size, eps=eps)
        for param in norm.parameters():
            param.sequence_parallel = config.sequence_parallel
        return norm


def local_block_spec(config: Any, *, on_cpu: bool, vp_stage: int | None = None) -> Any:
    """Return the specification of this pipeline stage's layers in Megatron-core's own modules.

    Args:
        config: Megatron-core's TransformerConfig.
        on_cpu: Whether the model runs on the CPU: Apex's norms do not.
        vp_stage: The virtual pipeline stage, where there are several.

    Returns:
        TransformerBlockSubmodules, with :class:`TorchNorm` in place of Megatron-core's WrappedTorchNorm, and on the CPU
        in place of Apex's norm too.
    """
    spec = get_gpt_decoder_block_spec(
        config, use_transformer_engine=False, normalization=config.normalization, vp_stage=vp_stage
    )
    return _exchanged(spec, {WrappedTorchNorm, spec.layer_norm} if on_cpu else {WrappedTorchNorm})


def _exchanged(spec: Any, norms: set[Any]) -> Any:
    if isinstance(spec, type):
        return TorchNorm if spec in norms else spec
    if isinstance(spec, list):
        return [_exchanged(item, norms) for item in spec]
    if is_dataclass(spec) and not isinstance(spec, type):
        return replace(spec, **{field.name: _exchanged(getattr(spec, field.name), norms) for field in fields(spec)})
    return spec
