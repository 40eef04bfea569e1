# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The model's own FLOPs against those of Megatron-core's passes on the meta device, counted product by product."""

import pytest
import torch

from nemo_sr.planning.activations import trace_pass
from nemo_sr.planning.model_flops import count_model_flops, find_peak_flops
from nemo_sr.planning.stage import Layout, ModelFacts
from nemo_sr.training.config import compose_config
from nemo_sr.training.regimes import REGIMES


@pytest.mark.parametrize(
    "words",
    [
        ["model.num_layers=2"],
        ["model.num_layers=4", "model.ffn_hidden_size=192", "model.encoder_seq_length=64"],
        # Megatron-core's unfused attention makes the scores that a window then leaves out: here it leaves out none.
        ["model.num_layers=2", "model.architecture=gpt_neo"],
    ],
)
def test_the_count_is_that_of_the_real_passes(words):
    model = compose_config(words).model
    cut = Layout(1, 1, 1, 3, sequence_parallel=False, recompute=None)
    one_pass = trace_pass(
        ModelFacts(model, 512, fused_attention=False),
        cut,
        stage=0,
        num_layers=model.num_layers,
        weights=torch.bfloat16,
        autocast=False,
    )
    assert one_pass.flops == 3 * count_model_flops(model, 512)


def test_a_window_is_counted_in_every_second_layer():
    words = ["model.num_layers=4", "model.architecture=gpt_neo", "model.encoder_seq_length=64"]
    whole, cut = (
        count_model_flops(compose_config([*words, *more]).model, 512) for more in ([], ["model.window_size=16"])
    )
    assert whole - cut == 3 * 2 * 64 * 2 * (2 * (64 - 16) * 128)


def test_peaks_are_those_of_the_strategys_products_and_unknown_gpus_have_none():
    sr, fp32 = REGIMES["adamw_sr"], REGIMES["adamw_fp32"]
    assert find_peak_flops("NVIDIA A100-SXM4-80GB", sr) == 312e12
    assert (
        find_peak_flops("NVIDIA H100 80GB HBM3", REGIMES["adamw_amp"]) == find_peak_flops("NVIDIA H200", sr) == 989e12
    )
    assert find_peak_flops("NVIDIA A100-SXM4-80GB", fp32) == 19.5e12
    for other in ("NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H200 NVL", "NVIDIA L40S"):
        assert find_peak_flops(other, sr) is None
