# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What an architecture turns into: options and specifications of Megatron-core."""

import re

import pytest
import torch
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel.layers import ColumnParallelLinear
from megatron.core.transformer.utils import is_layer_window_attention

from nemo_sr.models.architectures import ARCHITECTURES
from nemo_sr.models.gpt import tanh_gelu, transformer_config, without_qkv_bias
from nemo_sr.models.padding import pad_vocab_size
from nemo_sr.training.config import ConfigError, compose_config
from nemo_sr.training.validate import check_layout


def configured(*words, on_cpu=True):
    return transformer_config(compose_config(list(words)).model, on_cpu=on_cpu, params_dtype=torch.bfloat16)


@pytest.mark.parametrize(("num_layers", "window"), [(4, 256), (5, 32)])
def test_gpt_neos_odd_layers_see_a_window_that_ends_at_their_own_token(num_layers, window):
    words = [f"model.num_layers={num_layers}"] + ([] if window == 256 else [f"model.window_size={window}"])
    built = configured("model.architecture=gpt_neo", *words)
    local = [
        is_layer_window_attention(built.window_size, built.window_attn_skip_freq, layer + 1)
        for layer in range(num_layers)
    ]
    assert local == [bool(layer % 2) for layer in range(num_layers)]
    assert built.window_size == (window - 1, 0)
    assert built.softmax_scale == 1.0


def test_gpt2_has_no_window_and_scales_its_scores():
    built = configured()
    assert (built.window_size, built.softmax_scale) == (None, None)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("on_cpu", [False, True])
def test_gelu_is_the_tanh_form_fused_or_not(architecture, on_cpu, monkeypatch):
    from megatron.core.fusions.fused_bias_gelu import bias_gelu

    monkeypatch.setattr("nemo_sr.models.gpt._has_softmax_kernels", lambda: True)
    built = configured(f"model.architecture={architecture}", on_cpu=on_cpu)
    x = torch.linspace(-6, 6, 1001)
    if built.bias_activation_fusion:
        assert built.activation_func is torch.nn.functional.gelu  # else Megatron-core refuses to fuse
        with torch.compiler.set_stance("force_eager"):
            value = bias_gelu(torch.zeros(1), x)
    else:
        value = built.activation_func(x)
    assert built.bias_activation_fusion is not on_cpu
    torch.testing.assert_close(value, tanh_gelu(x), rtol=0, atol=1e-6)
    assert (value - torch.nn.functional.gelu(x)).abs().max() > 4e-4
    # The fused softmax ignores windows.
    assert built.masked_softmax_fusion is (not on_cpu and architecture == "gpt2")


def test_only_queries_keys_and_values_lose_their_bias():
    # The form of Transformer Engine's specification; test_parity has that of a block.
    layer = get_gpt_layer_local_spec()
    changed = without_qkv_bias(layer)
    before, after = (one.submodules.self_attention.submodules for one in (layer, changed))
    assert before.linear_qkv is ColumnParallelLinear
    assert after.linear_qkv is not ColumnParallelLinear
    assert (after.linear_proj, after.core_attention) == (before.linear_proj, before.core_attention)
    assert changed.submodules.mlp == layer.submodules.mlp


def test_gpt_neo_on_a_megatron_core_without_windows_is_refused():
    for version in ("0.14.0", "0.14.1rc0", "0.9.0"):
        with pytest.raises(RuntimeError, match=rf"needs megatron-core 0\.15 or newer.*; {re.escape(version)} is inst"):
            ARCHITECTURES["gpt_neo"].check_megatron(version)
        if version != "0.9.0":
            ARCHITECTURES["gpt2"].check_megatron(version)
    for version in ("0.15.0", "0.16.1", "1.0", "core_r0.16"):
        ARCHITECTURES["gpt_neo"].check_megatron(version)


def test_an_old_megatron_core_is_refused_when_the_model_is_configured(monkeypatch):
    monkeypatch.setattr("megatron.core.__version__", "0.14.0")
    with pytest.raises(RuntimeError, match=r"0\.15 or newer"):
        configured("model.architecture=gpt_neo")


def test_a_window_belongs_to_gpt_neo():
    with pytest.raises(ConfigError, match=r"model\.window_size belongs to .*; it is 128 and the architecture gpt2"):
        check_layout(compose_config(["model.window_size=128"]))
    check_layout(compose_config(["model.window_size=128", "model.architecture=gpt_neo"]))


@pytest.mark.parametrize(
    ("size", "tensor_parallel_size", "padded"),
    [(50257, 1, 50304), (50257, 2, 50432), (50257, 8, 51200), (512, 1, 512)],
)
def test_the_vocabulary_is_padded_as_in_megatron(size, tensor_parallel_size, padded):
    assert pad_vocab_size(size, divisible_by=128, tensor_parallel_size=tensor_parallel_size) == padded
