# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What a GPT is, apart from its weights and from how it is trained. Imports no Megatron."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nemo_sr.models.architectures import ARCHITECTURES


@dataclass(frozen=True)
class ModelDescription:
    """What has to be known of a GPT to use its weights; the names are those of the configuration's ``model`` part."""

    architecture: str
    vocab_size: int
    """Tokens, without padding."""

    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    max_position_embeddings: int
    window_size: int | None
    """Tokens that a local layer sees; None where the architecture has no such layers."""

    layernorm_epsilon: float
    share_embeddings_and_output_weights: bool

    @classmethod
    def from_config(cls, model: Any, vocab_size: int) -> ModelDescription:
        """Describe the GPT of the ``model`` part of a configuration, under a tokenizer of `vocab_size` tokens."""
        return cls(
            architecture=model.architecture,
            vocab_size=vocab_size,
            num_layers=model.num_layers,
            hidden_size=model.hidden_size,
            ffn_hidden_size=model.ffn_hidden_size or 4 * model.hidden_size,
            num_attention_heads=model.num_attention_heads,
            max_position_embeddings=model.max_position_embeddings,
            window_size=model.window_size or ARCHITECTURES[model.architecture].window_size,
            layernorm_epsilon=model.layernorm_epsilon,
            share_embeddings_and_output_weights=model.share_embeddings_and_output_weights,
        )

    @property
    def num_parameters(self) -> int:
        """Weights and biases, padding left out and the tied embedding counted once."""
        width, inner = self.hidden_size, self.ffn_hidden_size
        qkv_bias = 3 * width if ARCHITECTURES[self.architecture].has_qkv_bias else 0
        attention = 3 * width * width + qkv_bias + width * width + width
        feed_forward = width * inner + inner + inner * width + width
        embeddings = self.vocab_size * (1 if self.share_embeddings_and_output_weights else 2)
        return (
            (embeddings + self.max_position_embeddings) * width
            + self.num_layers * (attention + feed_forward + 4 * width)
            + 2 * width
        )
