# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What a GPT is, apart from its weights and from how it is trained. Imports no Megatron."""

from __future__ import annotations

from dataclasses import dataclass


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

    @property
    def num_parameters(self) -> int:
        """Weights and biases, padding left out and the tied embedding counted once."""
        width, inner = self.hidden_size, self.ffn_hidden_size
        qkv_bias = 3 * width if self.architecture == "gpt2" else 0
        attention = 3 * width * width + qkv_bias + width * width + width
        feed_forward = width * inner + inner + inner * width + width
        embeddings = self.vocab_size * (1 if self.share_embeddings_and_output_weights else 2)
        return (
            (embeddings + self.max_position_embeddings) * width
            + self.num_layers * (attention + feed_forward + 4 * width)
            + 2 * width
        )
