# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Canonical names that every model of these tests has, in order; noise depends on them, so they never change."""

GOLDEN_ATTENTION = [
    "self_attention.linear_proj.bias",
    "self_attention.linear_proj.weight",
    "self_attention.linear_qkv.bias",
    "self_attention.linear_qkv.layer_norm_bias",
    "self_attention.linear_qkv.layer_norm_weight",
    "self_attention.linear_qkv.weight",
]

GOLDEN_REST = [
    "decoder.final_layernorm.bias",
    "decoder.final_layernorm.weight",
    "embedding.position_embeddings.weight",
    "embedding.word_embeddings.weight",
]
