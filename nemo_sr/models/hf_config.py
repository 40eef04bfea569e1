# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's config.json of GPT-2 and GPT-Neo, and what it says of the model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from nemo_sr.models.architectures import ARCHITECTURES
from nemo_sr.models.description import ModelDescription

CONFIG_FILE = "config.json"

_KEYS = {
    "gpt2": {
        "num_layers": "n_layer",
        "hidden_size": "n_embd",
        "ffn_hidden_size": "n_inner",
        "num_attention_heads": "n_head",
        "max_position_embeddings": "n_positions",
    },
    "gpt_neo": {
        "num_layers": "num_layers",
        "hidden_size": "hidden_size",
        "ffn_hidden_size": "intermediate_size",
        "num_attention_heads": "num_heads",
        "max_position_embeddings": "max_position_embeddings",
    },
}
# What these mean where config.json does not have them, and all that Megatron-core computes: other values are refused.
_FIXED = {
    "gpt2": {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
    "gpt_neo": {},
}
_TANH_GELU = ("gelu_new", "gelu_pytorch_tanh")
_CLASSES = {"gpt2": "GPT2LMHeadModel", "gpt_neo": "GPTNeoForCausalLM"}


def read_config(folder: Path) -> ModelDescription:
    """Return what the config.json of a Hugging Face folder describes.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is not JSON, or describes a model that is not one of these, or a variant that is not computed.
    """
    file = folder / CONFIG_FILE
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(
            f"a Hugging Face model is a folder with {CONFIG_FILE} and safetensors; {folder} has no {CONFIG_FILE}. Give "
            "the folder that save_pretrained wrote, or that was downloaded."
        ) from None
    except ValueError as error:  # a JSONDecodeError is one, and so is text that is not UTF-8
        raise ValueError(f"{CONFIG_FILE} must be JSON; {file} is not: {error}. Download it again.") from None
    if not isinstance(raw, dict) or raw.get("model_type") not in ARCHITECTURES:
        found = raw.get("model_type") if isinstance(raw, dict) else None
        raise ValueError(
            f"the model must be one of {', '.join(ARCHITECTURES)} (model_type in {CONFIG_FILE}); {file} has "
            f"{found!r}. Other architectures cannot be converted."
        )
    return _describe(raw, file)


def _describe(raw: Mapping[str, Any], file: Path) -> ModelDescription:
    name = raw["model_type"]
    sizes: dict[str, Any] = {ours: raw.get(theirs) for ours, theirs in _KEYS[name].items()}
    sizes["vocab_size"] = raw.get("vocab_size")
    if sizes["ffn_hidden_size"] is None and isinstance(sizes["hidden_size"], int):
        sizes["ffn_hidden_size"] = 4 * sizes["hidden_size"]
    for key, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            theirs = _KEYS[name].get(key, key)
            raise ValueError(f"{theirs} must be a number of at least 1; in {file} it is {size!r}. Correct it.")
    if sizes["hidden_size"] % sizes["num_attention_heads"]:
        raise ValueError(
            f"the width must be a multiple of the number of heads; in {file} they are {sizes['hidden_size']} and "
            f"{sizes['num_attention_heads']}. Correct it."
        )
    activation = raw.get("activation_function", "gelu_new")
    if activation not in _TANH_GELU:
        raise _refusal(file, "activation_function", " or ".join(_TANH_GELU), activation)
    for key, value in _FIXED[name].items():
        if raw.get(key, value) != value:
            raise _refusal(file, key, value, raw[key])
    window = None
    if name == "gpt_neo":
        window = raw.get("window_size", 256)
        wanted = ["global" if layer % 2 == 0 else "local" for layer in range(sizes["num_layers"])]
        if _attention_layers(raw) != wanted:
            raise _refusal(file, "attention_types", "global and local in turn", raw.get("attention_types"))
        if not isinstance(window, int) or isinstance(window, bool) or window < 1:
            raise _refusal(file, "window_size", "a number of at least 1", window)
    epsilon = raw.get("layer_norm_epsilon", 1e-5)
    if not isinstance(epsilon, (int, float)) or isinstance(epsilon, bool) or not 0 < epsilon < 1:
        raise _refusal(file, "layer_norm_epsilon", "a number between 0 and 1", epsilon)
    return ModelDescription(
        architecture=name,
        window_size=window,
        layernorm_epsilon=float(epsilon),
        share_embeddings_and_output_weights=bool(raw.get("tie_word_embeddings", True)),
        **sizes,
    )


def _refusal(file: Path, key: str, needed: Any, found: Any) -> ValueError:
    return ValueError(f"{key} must be {needed}; in {file} it is {found!r}. This variant cannot be converted.")


def _attention_layers(raw: Mapping[str, Any]) -> Any:
    if "attention_layers" in raw:
        return raw["attention_layers"]
    parts = raw.get("attention_types", [[["global", "local"], 12]])
    try:
        return [kind for kinds, times in parts for kind in kinds * times]
    except (TypeError, ValueError):
        return None


def make_config(description: ModelDescription, *, dtype: torch.dtype, end_of_text: int | None) -> dict[str, Any]:
    """Return the content of config.json.

    Args:
        description: The model.
        dtype: Type of the weights.
        end_of_text: Id of the token that ends a text; None: unknown.
    """
    name = description.architecture
    config = {
        "model_type": name,
        "architectures": [_CLASSES[name]],
        "dtype": str(dtype).removeprefix("torch."),
        "vocab_size": description.vocab_size,
        **{theirs: getattr(description, ours) for ours, theirs in _KEYS[name].items()},
        "activation_function": "gelu_new",
        "layer_norm_epsilon": description.layernorm_epsilon,
        "tie_word_embeddings": description.share_embeddings_and_output_weights,
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
    }
    if name == "gpt2":
        return {**config, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    pairs, rest = divmod(description.num_layers, 2)
    kinds: list[Any] = [[["global", "local"], pairs]] if pairs else []
    return {
        **config,
        "window_size": description.window_size,
        "attention_types": kinds + ([[["global"], 1]] if rest else []),
        "attention_layers": ["global", "local"] * pairs + ["global"] * rest,
    }
