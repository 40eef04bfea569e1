# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Norms in plain torch take Megatron-core's place, marked for sequence parallelism."""

from dataclasses import fields, is_dataclass

import megatron.core.models.backends as backends
import megatron.core.models.gpt.gpt_layer_specs as specs
import pytest
import torch
from megatron.core import parallel_state
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from megatron.core.transformer.transformer_config import TransformerConfig

from lines import BLOCK_SPECS
from nemo_sr.models.norms import TorchNorm, local_block_spec


@pytest.fixture
def first_stage():
    parallel_state.set_pipeline_model_parallel_rank(0)
    yield
    parallel_state.set_pipeline_model_parallel_rank(None)


def config(**options):
    sizes = {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "tensor_model_parallel_size": 2}
    return TransformerConfig(**{**sizes, **options})


def modules(spec):
    """Every class that a specification names."""
    if isinstance(spec, type):
        return [spec]
    if isinstance(spec, list):
        return [found for item in spec for found in modules(item)]
    if is_dataclass(spec):
        return [found for field in fields(spec) for found in modules(getattr(spec, field.name))]
    return []


@pytest.mark.parametrize("along_the_sequence", [True, False])
@pytest.mark.parametrize(("normalization", "names"), [("LayerNorm", {"weight", "bias"}), ("RMSNorm", {"weight"})])
def test_weights_are_marked(normalization, names, along_the_sequence):
    norm = TorchNorm(config(normalization=normalization, sequence_parallel=along_the_sequence), 32, eps=1e-3)
    assert isinstance(norm, getattr(torch.nn, normalization))
    assert norm.eps == 1e-3
    assert {name for name, _ in norm.named_parameters()} == names
    # As Megatron-core reads it, after the casts that a model goes through.
    marks = [param.sequence_parallel for param in norm.bfloat16().parameters()]
    assert marks == [along_the_sequence] * len(names)


@pytest.mark.parametrize("name", ["layernorm_zero_centered_gamma", "persist_layer_norm", "memory_efficient_layer_norm"])
def test_what_torch_does_not_have_is_refused_by_name(name):
    with pytest.raises(ValueError, match=f"^{name} must be False"):
        TorchNorm(config(**{name: True}), 32)


def test_another_norm_is_refused():
    with pytest.raises(ValueError, match=r"one of LayerNorm, RMSNorm .* it is 'L2Norm'"):
        TorchNorm(config(normalization="L2Norm"), 32)


@BLOCK_SPECS
@pytest.mark.usefixtures("first_stage")
@pytest.mark.parametrize("on_cpu", [True, False])
@pytest.mark.parametrize(
    ("options", "per_layer"),
    [
        ({}, 2),
        ({"normalization": "RMSNorm", "qk_layernorm": True}, 4),
        ({"num_moe_experts": 2, "add_bias_linear": False}, 2),
    ],
)
def test_every_norm_of_a_block_is_exchanged(options, per_layer, on_cpu):
    found = modules(local_block_spec(config(**options), on_cpu=on_cpu))
    assert WrappedTorchNorm not in found
    assert found.count(TorchNorm) == 2 * per_layer + 1


@BLOCK_SPECS
@pytest.mark.usefixtures("first_stage")
@pytest.mark.parametrize(("on_cpu", "left"), [(True, 0), (False, 5)])
def test_apexs_norm_stays_on_a_gpu(monkeypatch, on_cpu, left):
    class FusedLayerNorm(torch.nn.Module):
        """Stands where Megatron-core puts its norm when Apex is installed."""

    for module in (specs, backends):
        monkeypatch.setattr(module, "LNImpl", FusedLayerNorm)
    found = modules(local_block_spec(config(), on_cpu=on_cpu))
    assert found.count(FusedLayerNorm) == left
    assert found.count(TorchNorm) == 5 - left
