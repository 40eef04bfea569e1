# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""GPT-2 and GPT-Neo in Megatron-core's GPTModel, with initial weights that do not depend on the parallel layout."""

from __future__ import annotations

import hashlib
import importlib.util
import math
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any

import megatron.core
import torch
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import HAVE_TE, get_gpt_layer_with_transformer_engine_spec
from megatron.core.transformer.attention import SelfAttentionSubmodules
from megatron.core.transformer.spec_utils import build_module
from megatron.core.transformer.transformer_config import TransformerConfig
from omegaconf import DictConfig

from nemo_sr.models.architectures import ARCHITECTURES, check_transformer_engine
from nemo_sr.models.norms import local_block_spec
from nemo_sr.models.padding import PaddedGPT, pad_vocab_size


def transformer_config(model: DictConfig, *, on_cpu: bool, params_dtype: torch.dtype, autocast: bool = False) -> Any:
    """Return Megatron-core's TransformerConfig for the ``model`` part of a configuration.

    Args:
        model: The keys of ``schema.ModelConfig``.
        on_cpu: Whether the weights are made on the CPU, without fused CUDA kernels.
        params_dtype: Type of the weights.
        autocast: Whether matrix products take FP32 weights and activations as BF16; the others stay in FP32.

    Returns:
        The configuration for this rank's layers.

    Raises:
        RuntimeError: the installed Megatron-core is too old for this architecture.
    """
    architecture = ARCHITECTURES[model.architecture]
    architecture.check_megatron(megatron.core.__version__)
    window = model.window_size or architecture.window_size
    half = params_dtype == torch.bfloat16
    return TransformerConfig(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        ffn_hidden_size=model.ffn_hidden_size,
        num_attention_heads=model.num_attention_heads,
        hidden_dropout=model.hidden_dropout,
        attention_dropout=model.attention_dropout,
        layernorm_epsilon=model.layernorm_epsilon,
        softmax_scale=architecture.softmax_scale,
        **_window_options(window, model.num_layers),
        init_method_std=model.init_method_std,
        tensor_model_parallel_size=model.tensor_model_parallel_size,
        pipeline_model_parallel_size=model.pipeline_model_parallel_size,
        sequence_parallel=model.sequence_parallel,
        recompute_granularity=model.activations_checkpoint_granularity,
        **_recomputation(model),
        bf16=half,
        params_dtype=params_dtype,
        pipeline_dtype=params_dtype,
        enable_autocast=autocast,
        autocast_dtype=torch.bfloat16 if autocast else params_dtype,
        use_cpu_initialization=on_cpu,
        # The fused kernel knows of no window.
        masked_softmax_fusion=not on_cpu and window is None and _has_softmax_kernels(),
        # The fused one, chosen by the name of F.gelu, computes the tanh form.
        activation_func=tanh_gelu if on_cpu else torch.nn.functional.gelu,
        bias_activation_fusion=not on_cpu,
        bias_dropout_fusion=not on_cpu,
        gradient_accumulation_fusion=False,
    )


tanh_gelu: Callable[[torch.Tensor], torch.Tensor] = partial(torch.nn.functional.gelu, approximate="tanh")
"""GELU as GPT-2 and GPT-Neo have it; its exact form is up to 4.7e-4 off."""


def _recomputation(model: DictConfig) -> dict[str, Any]:
    if model.activations_checkpoint_granularity != "full":
        return {}
    return {
        "recompute_method": model.activations_checkpoint_method or "uniform",
        "recompute_num_layers": model.activations_checkpoint_num_layers or 1,
    }


def _window_options(window: int | None, num_layers: int) -> dict[str, Any]:
    if window is None:
        return {}
    # Tokens before one's own, and after it. Megatron-core reads the list as "this layer has a window", while the number
    # 2 would give windows to layers 0, 2, 4 ...
    return {"window_size": (window - 1, 0), "window_attn_skip_freq": [layer % 2 for layer in range(num_layers)]}


def _has_softmax_kernels() -> bool:
    # Apex brings them; Megatron-core would import them in the first forward pass.
    names = ("scaled_upper_triang_masked_softmax_cuda", "scaled_masked_softmax_cuda")
    return all(importlib.util.find_spec(name) is not None for name in names)


def build_gpt(
    config: Any,
    model: DictConfig,
    *,
    vocab_size: int,
    on_cpu: bool,
    is_initialized: bool = True,
) -> Any:
    """Return this pipeline stage's part of the GPT, with its initial weights.

    Args:
        config: What :func:`transformer_config` returned.
        model: The keys of ``schema.ModelConfig``.
        vocab_size: Tokens of the tokenizer; the embedding has more rows, so that the ranks hold equally many.
        on_cpu: Whether the model runs on the CPU; Transformer Engine is not used then.
        is_initialized: Whether to give matrices and biases their initial values. Without, they hold anything, and are
            not marked as cut over tensor-parallel ranks: for models that are loaded on one rank, or only counted.

    Returns:
        A GPTModel whose weights have the type ``config.params_dtype``, and whose loss and logits leave padding out.

    Raises:
        RuntimeError: Transformer Engine was asked for and is not there.
    """
    use_te = HAVE_TE and not on_cpu if model.transformer_engine is None else model.transformer_engine
    if use_te:
        check_transformer_engine(on_cpu=on_cpu, is_installed=HAVE_TE)
    spec = get_gpt_layer_with_transformer_engine_spec() if use_te else local_block_spec(config, on_cpu=on_cpu)
    config.perform_initialization = is_initialized
    gpt = PaddedGPT(
        config,
        spec if ARCHITECTURES[model.architecture].has_qkv_bias else without_qkv_bias(spec),
        num_tokens=vocab_size,
        vocab_size=pad_vocab_size(
            vocab_size,
            divisible_by=model.make_vocab_size_divisible_by,
            tensor_parallel_size=model.tensor_model_parallel_size,
        ),
        max_sequence_length=model.max_position_embeddings,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        position_embedding_type="learned_absolute",
        share_embeddings_and_output_weights=model.share_embeddings_and_output_weights,
    )
    if is_initialized:
        initialize_weights_(gpt, config, seed=model.seed, vocab_size=vocab_size)
    return gpt.to(config.params_dtype)


def without_qkv_bias(spec: Any) -> Any:
    """Return a specification of layers whose self-attention has no bias on queries, keys and values.

    Megatron-core's ``add_qkv_bias=False`` leaves that bias where ``add_bias_linear=True`` wants one everywhere.
    """
    if isinstance(spec, SelfAttentionSubmodules):
        return replace(spec, linear_qkv=_without_bias(spec.linear_qkv))
    if isinstance(spec, list):
        return [without_qkv_bias(item) for item in spec]
    if is_dataclass(spec) and not isinstance(spec, type):
        return replace(spec, **{field.name: without_qkv_bias(getattr(spec, field.name)) for field in fields(spec)})
    return spec


def _without_bias(linear: Any) -> type:
    class Biasless:
        """Makes the linear layer, called as Megatron-core calls that of a layer specification."""

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            return build_module(linear, *args, **{**kwargs, "bias": False})

    return Biasless


@torch.no_grad()
def initialize_weights_(gpt: Any, config: Any, *, seed: int, vocab_size: int) -> None:
    """Draw the weight matrices of `gpt` from their names, so that every parallel layout starts from the same weights.

    A matrix is drawn whole, in float32, from a generator seeded with `seed` and the matrix's name (layers counted over
    the whole model), and cut to this rank's part. Biases and norms keep what Megatron-core gave them: 0 and 1. The
    distribution is Megatron-core's: normal, divided by sqrt(2 * num_layers) where a layer writes to the residual
    stream.

    Args:
        gpt: A GPTModel on this rank.
        config: Its TransformerConfig.
        seed: The run's seed.
        vocab_size: Rows of the vocabulary before padding; the padding's rows are drawn after them.
    """
    layer_numbers = {
        f"decoder.layers.{local}": f"decoder.layers.{layer.layer_number - 1}"
        for local, layer in enumerate(gpt.decoder.layers)
    }
    for name, param in gpt.named_parameters():
        if param.dim() < 2:
            continue
        head, dot, rest = name.partition(".layers.")
        if dot:
            index, _, rest = rest.partition(".")
            name = f"{layer_numbers[f'{head}.layers.{index}']}.{rest}"
        if name == "output_layer.weight" and gpt.share_embeddings_and_output_weights:
            name = "embedding.word_embeddings.weight"  # the last stage's copy of the tied embedding
        writes_residual = name.endswith(("linear_proj.weight", "linear_fc2.weight"))
        std = config.init_method_std / math.sqrt(2.0 * config.num_layers) if writes_residual else config.init_method_std
        param.copy_(_own_part(_draw(name, param, std=std, seed=seed, vocab_size=vocab_size), param))


def _draw(name: str, param: Any, *, std: float, seed: int, vocab_size: int) -> torch.Tensor:
    shape = list(param.shape)
    if getattr(param, "tensor_model_parallel", False):
        shape[param.partition_dim] *= parallel_state.get_tensor_model_parallel_world_size()
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    generator = torch.Generator(device=param.device).manual_seed(int.from_bytes(digest, "little") >> 1)
    num_rows = min(vocab_size, shape[0]) if name in _VOCABULARY else shape[0]
    draws = [
        torch.empty(rows, *shape[1:], device=param.device).normal_(0.0, std, generator=generator)
        for rows in (num_rows, shape[0] - num_rows)
    ]
    return torch.cat(draws)


_VOCABULARY = ("embedding.word_embeddings.weight", "output_layer.weight")


def _own_part(whole: torch.Tensor, param: Any) -> torch.Tensor:
    if not getattr(param, "tensor_model_parallel", False):
        return whole
    size = param.shape[param.partition_dim]
    return whole.narrow(param.partition_dim, parallel_state.get_tensor_model_parallel_rank() * size, size)
