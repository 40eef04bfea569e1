# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Small random GPT-2 and GPT-Neo of transformers, and what they compute."""

import torch
from torch.nn.functional import cross_entropy

from nemo_sr.models.description import ModelDescription
from nemo_sr.models.hf_weights import megatron_tensors

WINDOW = 8
LENGTH = 40
SAMPLES = 4


def describe(architecture, **changes):
    """Describe a model whose vocabulary gets padded and whose samples are longer than its window."""
    options = {
        "architecture": architecture,
        "vocab_size": 257,
        "num_layers": 4,
        "hidden_size": 64,
        "ffn_hidden_size": 192,
        "num_attention_heads": 4,
        "max_position_embeddings": 48,
        "window_size": WINDOW if architecture == "gpt_neo" else None,
        "layernorm_epsilon": 1e-5,
        "share_embeddings_and_output_weights": True,
    }
    return ModelDescription(**{**options, **changes})


def configure(description):
    """Return transformers' configuration of that model."""
    from transformers import GPT2Config, GPTNeoConfig

    common = {
        "vocab_size": description.vocab_size,
        "layer_norm_epsilon": description.layernorm_epsilon,
        "tie_word_embeddings": description.share_embeddings_and_output_weights,
        "bos_token_id": description.vocab_size - 1,
        "eos_token_id": description.vocab_size - 1,
    }
    if description.architecture == "gpt2":
        return GPT2Config(
            n_layer=description.num_layers,
            n_embd=description.hidden_size,
            n_inner=description.ffn_hidden_size,
            n_head=description.num_attention_heads,
            n_positions=description.max_position_embeddings,
            **{f"{kind}_pdrop": 0.0 for kind in ("resid", "embd", "attn")},
            **common,
        )
    return GPTNeoConfig(
        num_layers=description.num_layers,
        hidden_size=description.hidden_size,
        intermediate_size=description.ffn_hidden_size,
        num_heads=description.num_attention_heads,
        max_position_embeddings=description.max_position_embeddings,
        window_size=description.window_size,
        attention_types=[[[["global", "local"][layer % 2]], 1] for layer in range(description.num_layers)],
        **common,
    )


def build(description):
    """Return the model in FP32 with random weights, biases and norms, the same on every call."""
    from transformers import GPT2LMHeadModel, GPTNeoForCausalLM

    kind = {"gpt2": GPT2LMHeadModel, "gpt_neo": GPTNeoForCausalLM}[description.architecture]
    config = configure(description)
    config._attn_implementation = "eager"
    model = kind(config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for param in model.parameters():
            param.copy_(torch.randn(param.shape, generator=generator) * 0.15)
        for name, param in model.named_parameters():
            if ".ln_" in name and name.endswith("weight"):
                param += 1
    return model


def batch(description):
    """Return tokens and labels, shape (SAMPLES, LENGTH) each."""
    generator = torch.Generator().manual_seed(2)
    text = torch.randint(0, description.vocab_size, (SAMPLES, LENGTH + 1), generator=generator)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def compute(description):
    """Return weights, logits, mean loss and gradients; weights and gradients as Megatron has them."""
    model = build(description)
    tokens, labels = batch(description)
    logits = model(tokens).logits
    loss = cross_entropy(logits.flatten(0, 1), labels.flatten())
    loss.backward()
    weights = dict(model.named_parameters(remove_duplicate=False))
    return {
        "weights": dict(megatron_tensors(description, lambda name: weights[name].detach())),
        "logits": logits.detach(),
        "loss": loss.item(),
        "gradients": dict(megatron_tensors(description, lambda name: weights[name].grad)),
    }
