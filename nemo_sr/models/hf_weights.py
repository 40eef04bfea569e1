# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Which tensor of Hugging Face's GPT-2 and GPT-Neo is which of Megatron-core's, and how their elements are ordered.

Megatron's names are those of its checkpoints (:mod:`nemo_sr.megatron.naming`), the same with Transformer Engine's
layers and with Megatron-core's own. Every tensor is a permutation of the other side's elements: no bit is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from nemo_sr.models.description import ModelDescription

Read = Callable[[str], torch.Tensor]


@dataclass(frozen=True)
class _Match:
    """One tensor of Megatron's, and those of Hugging Face's that hold the same elements."""

    megatron: str
    hugging_face: tuple[str, ...]
    is_transposed: bool = False
    """Hugging Face's GPT-2 has matrices with the inputs first."""

    is_qkv: bool = False
    """Hugging Face has all queries, all keys, all values; Megatron has those of one head after those of another."""


def megatron_tensors(description: ModelDescription, read: Read) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield Megatron's tensors, whole and without padding, one at a time.

    Args:
        description: The model.
        read: Returns Hugging Face's tensor of a name.
    """
    for match in _matches(description):
        parts = [read(name) for name in match.hugging_face]
        tensor = torch.cat([part.t() if match.is_transposed else part for part in parts])
        yield match.megatron, _by_head(tensor, 3, description.num_attention_heads) if match.is_qkv else tensor


def hugging_face_tensors(description: ModelDescription, read: Read) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield Hugging Face's tensors, one at a time.

    Args:
        description: The model.
        read: Returns Megatron's tensor of a name, whole and without padding.
    """
    for match in _matches(description):
        tensor = read(match.megatron)
        if match.is_qkv:
            tensor = _by_head(tensor, description.num_attention_heads, 3)
        for name, part in zip(match.hugging_face, tensor.chunk(len(match.hugging_face)), strict=True):
            yield name, (part.t() if match.is_transposed else part).contiguous()


def hugging_face_shapes(description: ModelDescription) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every tensor that a Hugging Face folder of this model has."""
    shapes = {}
    for match in _matches(description):
        first, *others = _megatron_shape(description, match.megatron)
        shape = (first // len(match.hugging_face), *others)
        shapes.update(dict.fromkeys(match.hugging_face, shape[::-1] if match.is_transposed else shape))
    return shapes


def _megatron_shape(description: ModelDescription, name: str) -> tuple[int, ...]:
    width, inner = description.hidden_size, description.ffn_hidden_size
    ends = {
        "word_embeddings.weight": (description.vocab_size, width),
        "output_layer.weight": (description.vocab_size, width),
        "position_embeddings.weight": (description.max_position_embeddings, width),
        "linear_qkv.weight": (3 * width, width),
        "linear_qkv.bias": (3 * width,),
        "linear_proj.weight": (width, width),
        "linear_fc1.weight": (inner, width),
        "linear_fc1.bias": (inner,),
        "linear_fc2.weight": (width, inner),
    }
    return next((shape for end, shape in ends.items() if name.endswith(end)), (width,))


def _by_head(tensor: torch.Tensor, outer: int, inner: int) -> torch.Tensor:
    """Exchange the two outer counts of the first axis: (outer, inner, rest) to (inner, outer, rest)."""
    split = tensor.reshape(outer, inner, tensor.shape[0] // (outer * inner), *tensor.shape[1:])
    return split.transpose(0, 1).reshape(tensor.shape)


def _matches(description: ModelDescription) -> Iterator[_Match]:
    yield _Match("embedding.word_embeddings.weight", ("transformer.wte.weight",))
    yield _Match("embedding.position_embeddings.weight", ("transformer.wpe.weight",))
    for layer in range(description.num_layers):
        yield from _layer(description, f"decoder.layers.{layer}", f"transformer.h.{layer}")
    for kind in ("weight", "bias"):
        yield _Match(f"decoder.final_layernorm.{kind}", (f"transformer.ln_f.{kind}",))
    if not description.share_embeddings_and_output_weights:
        yield _Match("output_layer.weight", ("lm_head.weight",))


def _layer(description: ModelDescription, ours: str, theirs: str) -> Iterator[_Match]:
    is_gpt2 = description.architecture == "gpt2"
    qkv, fc1, fc2 = f"{ours}.self_attention.linear_qkv", f"{ours}.mlp.linear_fc1", f"{ours}.mlp.linear_fc2"
    if is_gpt2:
        projection = f"{theirs}.attn.c_proj"
        yield _Match(f"{qkv}.weight", (f"{theirs}.attn.c_attn.weight",), is_transposed=True, is_qkv=True)
        yield _Match(f"{qkv}.bias", (f"{theirs}.attn.c_attn.bias",), is_qkv=True)
    else:
        projection = f"{theirs}.attn.attention.out_proj"
        parts = tuple(f"{theirs}.attn.attention.{part}_proj.weight" for part in "qkv")
        yield _Match(f"{qkv}.weight", parts, is_qkv=True)
    for mine, other in ((f"{ours}.self_attention.linear_proj", projection), (fc1, "c_fc"), (fc2, "c_proj")):
        other = other if other == projection else f"{theirs}.mlp.{other}"
        yield _Match(f"{mine}.weight", (f"{other}.weight",), is_transposed=is_gpt2)
        yield _Match(f"{mine}.bias", (f"{other}.bias",))
    for kind in ("weight", "bias"):
        yield _Match(f"{qkv}.layer_norm_{kind}", (f"{theirs}.ln_1.{kind}",))
        yield _Match(f"{fc1}.layer_norm_{kind}", (f"{theirs}.ln_2.{kind}",))
