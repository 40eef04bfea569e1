# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts on real gloo ranks: experts have data-parallel groups and an optimizer of their own."""

import math

import pytest
import tiny_gpt as gpt
from golden_names import GOLDEN_ATTENTION, GOLDEN_REST

from lines import GROUPED_MLP, RESUMES
from nemo_sr.megatron.versions import is_since

BIASED = ["plain", "replicated", "mixed"]
FP32 = {"mixed": ("router",)}
CASES = [
    *((layout, variant) for layout in ("dp2", "ep2", "tp2ep2") for variant in BIASED),
    *((layout, variant) for layout in ("dp4ep2", "dp4ep4", "pp2ep2", "dp2tp2ep2") for variant in BIASED),
    ("dp2tp2etp2ep2", "unbiased"),
]
GOLDEN_LAYER = [
    *(
        f"mlp.experts.experts.{expert}.{linear}.{kind}"
        for expert in range(4)
        for linear in ("linear_fc1", "linear_fc2")
        for kind in ("bias", "weight")
    ),
    "mlp.linear_fc1.layer_norm_bias",
    "mlp.linear_fc1.layer_norm_weight",
    "mlp.router.bias",
    "mlp.router.weight",
    *GOLDEN_ATTENTION,
]


@pytest.fixture(scope="module")
def kind():
    return "experts"


@pytest.fixture(scope="module")
def expected(found):
    return {
        variant: gpt.single_process(found["one"][variant]["shapes"], fp32=FP32.get(variant, ()))
        for variant in (*BIASED, "unbiased")
    }


@pytest.mark.parametrize("variant", [*BIASED, "unbiased"])
def test_one_rank_is_bit_equal_to_the_optimizer_without_megatron(found, expected, variant):
    digest, _, norms = expected[variant]
    assert found["one"][variant]["digest"] == digest
    assert found["one"][variant]["norms"] == pytest.approx(norms, rel=1e-12)


@pytest.mark.parametrize(("layout", "variant"), CASES)
def test_ten_steps_are_bit_equal_to_one_process(found, expected, layout, variant):
    digest, _, norms = expected[variant]
    assert found[layout][variant]["digest"] == digest
    assert min(norms) > 1  # so that clipping took part in the digests
    assert found[layout][variant]["norms"] == pytest.approx(norms, rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "variant"),
    [*(("dp2tp2pp2ep2", variant) for variant in BIASED), ("dp2tp2pp2etp2ep2", "unbiased")],
)
def test_eight_ranks_are_bit_equal_to_one_process(eight_ranks, expected, layout, variant):
    digest, _, norms = expected[variant]
    assert eight_ranks[layout][variant]["digest"] == digest
    assert eight_ranks[layout][variant]["norms"] == pytest.approx(norms, rel=1e-12)


@pytest.mark.parametrize("form", ["prepended axes", "keys per layer"])
def test_names_are_the_golden_ones_in_both_forms_of_keys(found, form):
    golden = GOLDEN_REST + [f"decoder.layers.{layer}.{rest}" for layer in range(2) for rest in GOLDEN_LAYER]
    if not is_since("0.15"):  # which allows a mixture of experts no biases but those of norms
        golden = [name for name in golden if not name.endswith(".bias") or "layernorm" in name]
    assert found["names"][form] == sorted(golden)


# Tensor parallelism sums activations in another order. In BF16 that moves the router's scores, and a token whose
# experts nearly tie then goes to another one.
@pytest.mark.parametrize(("layout", "tolerance"), [("ep2", 1e-2), ("tp2ep2", 2e-2)])
def test_real_training_agrees_with_experts_that_every_rank_holds(found, layout, tolerance):
    losses = found[layout]["losses"]
    assert losses[-1] < losses[0] - 0.5
    assert losses == pytest.approx(found["dp2"]["losses"], abs=tolerance)
    # The first step's norm is of one model on one batch: experts' gradients are scaled and reduced as the others are.
    assert found[layout]["norms"][0] == pytest.approx(found["dp2"]["norms"][0], rel=1e-2)


def test_overlapped_communication_changes_nothing(found):
    assert found["ep2"]["losses overlapped"] == found["ep2"]["losses"]


@pytest.mark.parametrize("variant", ["plain", "replicated"])
def test_a_gradient_that_is_not_finite_skips_the_step_of_every_optimizer_on_every_rank(found, variant):
    skipped = found["ep2"][f"skipped {variant}"]
    assert skipped["results"] == [[False, False, None]] * 2
    assert skipped["same"]
    assert skipped["steps"] == [1]
    assert skipped["after"]
    in_one_expert = found["ep2"][f"skipped {variant} by one expert"]
    assert in_one_expert == [[False, math.inf]] * 2


@pytest.mark.parametrize("case", RESUMES)
def test_a_resumed_run_is_bit_equal(found, case):
    resumed = found["ep2"][case]
    assert resumed["found"] == resumed["expected"]


REPLACED = ["none", "empty", "fully_sharded_model_space", "dp_zero_gather_scatter"]


@pytest.mark.parametrize("variant", ["plain", "replicated"])
def test_metadata_is_an_argument_that_nemo_2_finds_by_name(found, variant):
    assert "metadata" in found["ep2"][f"formats {variant}"]["names"]


@pytest.mark.parametrize("asked", REPLACED)
@pytest.mark.parametrize("variant", ["plain", "replicated"])
def test_a_form_that_adamw_sr_does_not_have_is_replaced_by_its_own(found, variant, asked):
    formats = found["ep2"][f"formats {variant}"]
    assert any("'optimizer.state.exp_avg.decoder." in line for line in formats["own"]["saved"])
    assert formats["own"]["said"] == []
    assert formats[asked]["saved"] == formats["own"]["saved"]
    assert bool(formats[asked]["said"]) == (variant == "plain")  # without data-parallel shards there is one form


def test_a_form_of_megatron_fsdp_is_refused(found):
    assert "fully_reshardable; got 'fsdp_dtensor'" in found["ep2"]["formats plain"]["fsdp_dtensor"]["saved"]
    assert "checkpoint_metadata()" in found["ep2"]["formats plain"]["fsdp_dtensor"]["saved"]


@GROUPED_MLP
def test_experts_in_one_tensor_are_refused_by_name(found):
    assert "GroupedMLP" in found["grouped"]
    assert "moe_grouped_gemm=False" in found["grouped"]
