# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Megatron-core on real gloo ranks: every layout against a single-process AdamWSR on the whole parameters."""

import pytest
import tiny_gpt as gpt
from golden_names import GOLDEN_ATTENTION, GOLDEN_REST
from telemetry_case import EVERYTHING, FEW, by_hand

from lines import RESUMES

LAYOUTS = ["one", "dp2", "tp2", "pp2"]
VARIANTS = ["plain", "replicated", "mixed"]
GOLDEN_LAYER = [
    "mlp.linear_fc1.bias",
    "mlp.linear_fc1.layer_norm_bias",
    "mlp.linear_fc1.layer_norm_weight",
    "mlp.linear_fc1.weight",
    "mlp.linear_fc2.bias",
    "mlp.linear_fc2.weight",
    *GOLDEN_ATTENTION,
]


# Names of the norms, which the mixed variant has in FP32.
FP32 = {"mixed": ("layernorm", "layer_norm")}
# In the tiny model with tensor parallelism 2, these are whole on every rank.
UNCUT = ("norm", "position_embeddings", "linear_proj.bias", "linear_fc2.bias")


@pytest.fixture(scope="module")
def kind():
    return "dense"


@pytest.fixture(scope="module")
def expected(found):
    return {
        variant: gpt.single_process(found["one"][f"injected {variant}"]["shapes"], fp32=FP32.get(variant, ()))
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


@pytest.mark.parametrize("samples", [EVERYTHING, FEW])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_telemetry_changes_no_bit_and_is_that_of_the_whole_model(found, layout, samples):
    watched = found[layout][f"watched {samples}"]
    assert watched["digest"] == found["one"]["injected plain"]["digest"]
    for here, one in zip(watched["reports"], found["one"][f"watched {samples}"]["reports"], strict=True):
        # Sums in FP64, in another order.
        assert here["table"] == [pytest.approx(row, rel=1e-12) for row in one["table"]]
        assert here["shortfall"] == pytest.approx(one["shortfall"], rel=1e-12)


def test_telemetry_is_what_one_finds_by_hand(found):
    reports = found["one"][f"watched {EVERYTHING}"]["reports"]
    for report, (table, shortfall) in zip(reports, by_hand(gpt, found["one"]["injected plain"]["shapes"]), strict=True):
        assert report["table"] == [pytest.approx(row, rel=1e-12) for row in table.tolist()]
        assert report["shortfall"] == pytest.approx(shortfall, rel=1e-12)
    last = reports[-1]["metrics"]
    assert 0.001 < last["sr/share_lost"] < 0.5  # it is not of nothing
    assert max(abs(last["sr/bias_along_update"]), abs(last["sr/bias_from_zero"])) < 5
    few = found["one"][f"watched {FEW}"]["reports"][-1]
    assert sum(row[0] for row in few["table"]) == sum(row[0] for row in reports[-1]["table"])
    assert few["metrics"]["sr/share_moved"] == pytest.approx(last["sr/share_moved"], abs=0.1)
    assert few["metrics"]["sr/share_moved"] != last["sr/share_moved"]


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


@pytest.mark.parametrize("case", RESUMES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_resumed_run_is_bit_equal(found, layout, case):
    resumed = found[layout][case]
    assert resumed["found"] == resumed["expected"]


def test_a_resumed_run_is_bit_equal_with_the_flags_of_transformer_engine(found):
    resumed = found["one"]["resumed with flags of TE"]
    assert resumed["found"] == resumed["expected"]


def test_virtual_pipeline_stages_are_bit_equal_to_one_process(found):
    deep = found["one"]["injected deep"]
    assert deep["digest"] == gpt.single_process(deep["shapes"])[0]
    assert found["pp2"]["injected deep"]["digest"] == deep["digest"]


@pytest.mark.parametrize("layout", [*LAYOUTS, "dp4", "tp4", "pp4", "tp2pp2", "dp2tp2", "dp2pp2"])
def test_grouped_queries_an_odd_vocabulary_and_small_buckets_are_bit_equal_to_one_process(found, layout):
    # Four tensor-parallel ranks need four groups of queries.
    expected = found["one"]["injected wide, four groups" if layout == "tp4" else "injected wide"]
    digest, _, norms = gpt.single_process(expected["shapes"])
    assert found[layout]["injected wide"]["digest"] == digest
    assert found[layout]["injected wide"]["norms"] == pytest.approx(norms, rel=1e-12)
    assert min(found[layout]["injected wide"]["buckets"]) > 1


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["dp2tp2pp2", "tp4pp2"])
def test_eight_ranks_are_bit_equal_to_one_process(found, eight_ranks, layout):
    expected = found["one"]["injected wide, four groups" if layout == "tp4pp2" else "injected wide"]
    digest, _, norms = gpt.single_process(expected["shapes"])
    assert eight_ranks[layout]["injected wide"]["digest"] == digest
    assert eight_ranks[layout]["injected wide"]["norms"] == pytest.approx(norms, rel=1e-12)


def test_sequence_parallelism_is_bit_equal_to_one_process(found, expected):
    digest, _, norms = expected["plain"]
    assert found["tp2"]["injected along the sequence"]["digest"] == digest
    assert found["tp2"]["injected along the sequence"]["norms"] == pytest.approx(norms, rel=1e-12)


def test_rms_norms_are_bit_equal_to_one_process(found):
    expected = found["one"]["injected rms"]
    digest, _, norms = gpt.single_process(expected["shapes"])
    assert "decoder.layers.1.self_attention.q_layernorm.weight" in expected["shapes"]
    for each in (expected, found["tp2"]["injected rms along the sequence"]):
        assert each["digest"] == digest
        assert each["norms"] == pytest.approx(norms, rel=1e-12)


def test_sequence_parallelism_sums_the_gradients_of_norms_over_its_ranks(found):
    # That both ranks have the same sum, the ranks have asserted. BF16 activations leave 0.4 % an operation.
    apart = found["tp2"]["gradients apart"]
    assert max(apart.values()) < 0.02, apart
    assert sum(gpt.is_norm(name) for name in apart) == 10


def test_sequence_parallelism_reaches_the_same_losses(found):
    assert found["tp2"]["losses along the sequence"] == pytest.approx(found["tp2"]["losses"], abs=1e-2)


def test_shards_with_equal_values_and_gradients_draw_different_noise(found):
    first, second = found["tp2"]["uniform"]
    cut = [name for name in first if not any(part in name for part in UNCUT)]
    assert len(cut) == 13
    for name in cut:
        assert first[name]["whole"] != second[name]["whole"], name
        assert len(first[name]["values"]) == len(second[name]["values"]) == 2, name


def test_weights_that_every_rank_holds_stay_bit_equal(found):
    first, second = found["tp2"]["uniform"]
    for name in first:
        if any(part in name for part in UNCUT):
            assert first[name] == second[name]
            assert len(first[name]["values"]) == 2, name
    first, second = found["dp2"]["uniform"]
    assert first == second


def test_tied_embeddings_on_the_first_and_last_stage_stay_bit_equal(found):
    first, last = found["pp2"]["uniform"]
    assert first.keys() & last.keys() == {"embedding.word_embeddings.weight"}
    assert first["embedding.word_embeddings.weight"] == last["embedding.word_embeddings.weight"]
    assert len(first["embedding.word_embeddings.weight"]["values"]) == 2


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_halves_of_swiglu_with_equal_values_and_gradients_draw_different_noise(found, layout):
    for rank in found[layout]["uniform"]:
        halves = [rank[name]["halves"] for name in rank if "linear_fc1.weight" in name or "linear_fc1.bias" in name]
        assert halves
        assert all(first != second for first, second in halves)


def test_mixed_precision_is_mixed_under_the_cpu_platform(found):
    autocast = found["one"]["autocast"]
    for enabled, dtype in (("True", "torch.bfloat16"), ("False", "torch.float32")):
        assert autocast[enabled].keys() >= {"mm", "bmm", "baddbmm"}
        assert {each for seen in autocast[enabled].values() for product in seen for each in product} == {dtype}
        assert autocast[f"{enabled} gradients"] == ["torch.float32"]


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


def test_ranks_with_other_options_are_refused_on_all_ranks(found):
    first, second = found["dp2"]["options apart"]
    assert first == second
    assert "rank 0 has SROptions(seed=11, " in first[0]
    assert "rank 1 SROptions(seed=12, " in first[0]
    assert first[1].startswith("rank 1: OptimizerConfig.sr_seed must be a whole number")


def test_rank_0_logs_the_options_once(found):
    logged, *others = found["dp2"]["options logged"]
    assert len(logged) == 1
    assert logged[0].startswith("adamw_sr: seed=13 (OptimizerConfig.sr_seed), exp_avg_rounding=")
    assert others == [[]]


def test_errors_say_what_to_do(found):
    assert "optimizer_cpu_offload=False" in found["factory"]["refused"]
    assert "--ckpt-format torch_dist" in found["factory"]["legacy"]
    assert "saved 'other'" in found["factory"]["renamed"]
