# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Megatron-core on real gloo ranks: every layout against a single-process AdamWSR on the whole parameters."""

import json
import math
from pathlib import Path

import pytest
import tiny_gpt as gpt
import torch
from gloo_ranks import run_ranks

import nemo_sr

SCRIPT = Path(__file__).with_name("megatron_rank.py")
LAYOUTS = ["one", "dp2", "tp2", "pp2"]
VARIANTS = ["plain", "replicated", "mixed"]
GOLDEN_LAYER = [
    "mlp.linear_fc1.bias",
    "mlp.linear_fc1.layer_norm_bias",
    "mlp.linear_fc1.layer_norm_weight",
    "mlp.linear_fc1.weight",
    "mlp.linear_fc2.bias",
    "mlp.linear_fc2.weight",
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


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    result = {}
    for num_ranks in (1, 2, 4):
        directory = tmp_path_factory.mktemp(f"ranks{num_ranks}")
        output = directory / "found.json"
        run_ranks(SCRIPT, num_ranks, str(output), str(directory / "saved"), directory=directory, timeout=400)
        result.update(json.loads(output.read_text()))
    return result


def single_process(shapes, *, fp32_norms):
    """Ten steps of AdamWSR on whole parameters; returns the digests and norms that every layout must give."""
    params = {}
    for name, shape in shapes.items():
        weight = gpt.whole_tensor(name, shape, "weight")
        params[name] = torch.nn.Parameter(weight.float() if fp32_norms and gpt.is_norm(name) else weight)
    optimizer = nemo_sr.AdamWSR(
        params.items(),
        lr=3e-3,
        betas=(0.9, 0.95),
        weight_decay=0.1,
        seed=11,
        exp_avg_rounding="stochastic",
        fp32_params="plain",
    )
    norms = []
    for step in range(10):
        for name, param in params.items():
            param.decoupled_grad = gpt.whole_tensor(name, param.shape, "gradient", step)
        norms.append(math.sqrt(sum(p.decoupled_grad.double().square().sum().item() for p in params.values())))
        optimizer.grad_scale = min(1.0, 1.0 / (norms[-1] + 1e-6))
        optimizer.step()
    whole = {"weight": {name: param.detach() for name, param in params.items()}}
    for moment in ("exp_avg", "exp_avg_sq"):
        whole[moment] = {name: optimizer.state[param][moment] for name, param in params.items()}
    return gpt.digest(whole), gpt.digest({"weight": whole["weight"]}), norms


@pytest.fixture(scope="module")
def expected(found):
    return {
        variant: single_process(found["one"][f"injected {variant}"]["shapes"], fp32_norms=variant == "mixed")
        for variant in VARIANTS
    }


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_ten_steps_are_bit_equal_to_one_process(found, expected, layout, variant):
    assert found[layout][f"injected {variant}"]["digest"] == expected[variant][0]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_norm_counts_every_element_once(found, expected, layout, variant):
    norms = expected[variant][2]
    assert min(norms) > 1  # so that clipping took part in the digests
    assert found[layout][f"injected {variant}"]["norms"] == pytest.approx(norms, rel=1e-12)


@pytest.mark.parametrize(("layout", "same"), [("one", True), ("dp2", False), ("tp2", False), ("pp2", True)])
def test_noise_tied_to_storage_would_be_found_out(found, expected, layout, same):
    # Pipeline stages hold whole parameters, so there storage and element coincide.
    assert (found[layout]["storage noise"] == expected["plain"][1]) is same


@pytest.mark.parametrize("layout", LAYOUTS)
def test_training_reaches_the_same_losses(found, layout):
    losses = found[layout]["losses"]
    assert len(losses) == 20
    assert losses[-1] < losses[0] - 0.5
    assert losses == pytest.approx(found["one"]["losses"], abs=1e-2)


@pytest.mark.parametrize("variant", ["plain", "replicated"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_gradient_that_is_not_finite_skips_the_step(found, layout, variant):
    skipped = found[layout][f"skipped {variant}"]
    assert skipped["results"] == [[False, False, None], [False, False, None]]
    assert skipped["same"]
    assert skipped["steps"] == [1]
    assert skipped["after"]


@pytest.mark.parametrize(
    "case", ["resumed plain dp_reshardable", "resumed plain fully_reshardable", "resumed replicated dp_reshardable"]
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_resumed_run_is_bit_equal(found, layout, case):
    resumed = found[layout][case]
    assert resumed["found"] == resumed["expected"]


def test_a_resumed_run_is_bit_equal_with_the_flags_of_transformer_engine(found):
    resumed = found["one"]["resumed with flags of TE"]
    assert resumed["found"] == resumed["expected"]


@pytest.mark.parametrize(("first", "second"), [("dp2", "tp2"), ("tp2", "pp2"), ("pp2", "dp2")])
def test_a_run_resumed_in_another_layout_is_bit_equal(found, expected, first, second):
    assert found[second][f"crossed from {first}"] == expected["plain"][0]


def test_virtual_pipeline_stages_are_bit_equal_to_one_process(found):
    deep = found["one"]["injected deep"]
    assert deep["digest"] == single_process(deep["shapes"], fp32_norms=False)[0]
    assert found["pp2"]["injected deep"]["digest"] == deep["digest"]


@pytest.mark.parametrize("layout", [*LAYOUTS, "dp4", "tp4", "pp4", "tp2pp2", "dp2tp2", "dp2pp2"])
def test_grouped_queries_an_odd_vocabulary_and_small_buckets_are_bit_equal_to_one_process(found, layout):
    # Four tensor-parallel ranks need four groups of queries.
    expected = found["one"]["injected wide, four groups" if layout == "tp4" else "injected wide"]
    digest, _, norms = single_process(expected["shapes"], fp32_norms=False)
    assert found[layout]["injected wide"]["digest"] == digest
    assert found[layout]["injected wide"]["norms"] == pytest.approx(norms, rel=1e-12)


def test_overlapped_communication_changes_nothing(found):
    assert found["dp2"]["losses overlapped"] == found["dp2"]["losses"]


def test_clip_grad_norm_is_folded_into_the_next_step(found, expected):
    norm, scale = found["factory"]["clip_grad_norm"]
    assert norm == pytest.approx(expected["plain"][2][1], rel=1e-12)
    assert scale == 0.25 / (norm + 1e-6)


def test_zeros_are_counted_by_megatron(found):
    zeros, elements = found["factory"]["zeros"]
    assert zeros == elements


def test_the_factory_gives_masterless_shards_of_megatrons_buffer(found):
    factory = found["factory"]
    assert factory["chain"] == "SRChainedOptimizer"
    assert factory["megatron"]
    assert factory["inner"] == "AdamWSR"
    assert factory["views"]
    assert factory["state"] == ["torch.bfloat16"]
    assert factory["options"] == {
        "seed": 3,
        "exp_avg_rounding": "stochastic",
        "exp_avg_sq_rounding": "stochastic",
        "betas": [0.9, 0.95],
    }


@pytest.mark.parametrize("form", ["names", "names of keys per layer"])
def test_names_are_the_golden_ones_in_both_forms_of_keys(found, form):
    golden = GOLDEN_REST + [f"decoder.layers.{layer}.{rest}" for layer in range(2) for rest in GOLDEN_LAYER]
    assert found["factory"][form] == sorted(golden)


def test_other_optimizers_are_megatrons_own(found):
    assert found["factory"]["adam"] == [True, "DistributedOptimizer"]


def test_errors_say_what_to_do(found):
    assert "optimizer_cpu_offload=False" in found["factory"]["refused"]
    assert "checkpoint_metadata()" in found["factory"]["no metadata"]
    assert "--ckpt-format torch_dist" in found["factory"]["legacy"]
    assert "saved 'other'" in found["factory"]["renamed"]
