# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Gradients on real gloo ranks: norms, skipped steps, accumulation, rates, drift, and how far layouts are apart."""

from pathlib import Path

import pytest
import torch
from gloo_ranks import run_ranks

from lines import OVERRIDES

SCRIPT = Path(__file__).with_name("gradient_rank.py")
LAYOUTS = ["dp2", "tp2", "pp2", "dp4", "tp2pp2", "dp2tp2"]
EXPERTS = ["ep2", "tp2ep2", "dp2ep2", "dp2tp2ep2"]
AGREEING = [*LAYOUTS, "tp2 sequence", *EXPERTS]


def run(what, ranks, folder):
    result = {}
    for num_ranks in ranks:
        directory = folder.mktemp(f"{what}{num_ranks}")
        output = directory / "found.pt"
        run_ranks(SCRIPT, num_ranks, what, str(output), str(directory / "saved"), directory=directory, timeout=500)
        result.update(torch.load(output, weights_only=False))
    return result


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return run("treatment", (2, 4), tmp_path_factory)


@pytest.mark.parametrize("layout", [*LAYOUTS, "two instances"])
def test_the_norm_is_that_of_the_same_gradients_in_one_process(found, layout):
    for kind, pairs in found[layout]["norms"].items():
        for norm, expected in pairs:
            assert expected > 0.1, kind
            assert norm == pytest.approx(expected, rel=1e-12), kind


@pytest.mark.parametrize("layout", [*LAYOUTS, "two instances"])
def test_one_bad_gradient_on_one_rank_skips_the_step_on_all(found, layout):
    skipped = found[layout]["skipped"]
    assert len(skipped["results"]) == (2 if layout in ("dp2", "tp2", "pp2") else 4)
    assert all(rank == [(False, False, None)] * 3 for rank in skipped["results"])
    assert skipped["unmoved"]
    assert skipped["steps"] == {1}
    assert skipped["after"]


@pytest.mark.parametrize("layout", [*LAYOUTS, "two instances"])
def test_reduced_gradients_give_the_same_bits_in_every_layout(found, layout):
    assert found[layout]["injected"] == found["dp2"]["injected"]


@pytest.mark.parametrize("kind", ["bf16", "fp32"])
def test_micro_batches_are_summed_in_the_buffers_type(found, kind):
    assert found["tp2"]["accumulated"][kind]


@OVERRIDES
@pytest.mark.parametrize(
    ("layout", "case"),
    [
        ("dp2", "multipliers"),
        ("tp2", "multipliers"),
        ("tp2", "multipliers replicated"),
        ("pp2", "multipliers"),
        ("two instances", "multipliers"),
    ],
)
def test_rates_and_multipliers_of_groups_survive_a_resume(found, layout, case):
    whole, resumed = found[layout][case]["digests"]
    assert whole == resumed == found["dp2"]["multipliers"]["digests"][0]
    groups, resumed_groups = found[layout][case]["groups"]
    assert resumed_groups == groups
    # Megatron's own scheduler, at the sixth of ten steps: a cosine from max_lr to min_lr after two steps of warm-up.
    factor = 0.5
    rates = {(group["max_lr"], group["min_lr"]): group["lr"] for group in groups}
    assert rates.keys() == {(3e-3, 3e-4), (6e-3, 1e-3), (1e-3, 0.0)}
    for (high, low), rate in rates.items():
        assert rate == pytest.approx(low + factor * (high - low), rel=1e-12)
    decays = {(group["wd_mult"], group["lr_mult"]): group["weight_decay"] for group in groups}
    assert decays == {(1.0, 1.0): 0.1, (1.0, 0.5): 0.1, (0.0, 1.0): 0.0, (0.5, 1.0): 0.05}


@pytest.mark.parametrize(
    ("layout", "number", "message"),
    [
        ("dp2", 0, "decoder.layers.0.mlp.linear_fc2.weight (rank 1 from rank 0)"),
        ("tp2", 0, "decoder.final_layernorm.weight (rank 1 from rank 0)"),
        ("pp2", 0, "embedding.word_embeddings.weight (rank 1 from rank 0)"),  # the last stage's copy
        ("dp4", 0, "embedding.position_embeddings.weight (rank 2 from rank 0, 1, 3)"),
        ("tp2pp2", 0, "embedding.word_embeddings.weight (rank 3 from rank 1)"),
        ("tp2pp2", 1, "decoder.layers.1.self_attention.linear_proj.bias (rank 3 from rank 2)"),
        ("dp2tp2", 0, "decoder.layers.0.mlp.linear_fc1.weight (rank 3 from rank 1)"),
        ("dp2tp2", 1, "decoder.final_layernorm.bias (rank 0 from rank 1, 2, 3)"),
    ],
)
def test_a_flipped_bit_is_named_on_every_rank(found, layout, number, message):
    (said,) = set(found[layout]["drifted"][number])
    assert said.startswith("Replicas must hold the same bits; 1 of ")
    assert f" weights differ: {message}. " in said


@pytest.fixture(scope="module")
def agreed(tmp_path_factory):
    return run("agreement", (1, 2, 4), tmp_path_factory)


def alone(agreed, layout):
    """The layout's model in one process."""
    return agreed["experts" if layout in EXPERTS else "one"]


def flat(tensors):
    return torch.cat([tensors[name].double().flatten() for name in sorted(tensors)])


def distance(tensors, reference):
    return ((flat(tensors) - flat(reference)).norm() / flat(reference).norm()).item()


def loss_distance(result, reference):
    return max(abs(a - b) for a, b in zip(result["losses"], reference["losses"], strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("layout", AGREEING)
def test_layouts_differ_by_the_rounding_of_bf16_alone(agreed, layout):
    one, other = alone(agreed, layout), agreed[layout]
    # The same model in FP32: the layouts compute the same.
    assert distance(other["first fp32 model"], one["first fp32 model"]) < 1e-6
    # In BF16 any layout is as far from that as they are from each other.
    error = distance(one["first bf16"], one["first fp32 model"])
    assert 3e-3 < error < 1e-2
    for kind in ("bf16", "fp32"):
        assert distance(other[f"first {kind}"], one[f"first {kind}"]) < 1.5 * error
        assert distance(other[f"first {kind}"], one["first fp32 model"]) < 1.5 * error


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_fp32_gradients_bring_layouts_closer_where_the_sum_is_what_differs(agreed, layout):
    bf16, fp32 = (
        distance(agreed[layout][f"first {kind}"], agreed["one"][f"first {kind}"]) for kind in ("bf16", "fp32")
    )
    if "tp" in layout:  # partial sums of activations are rounded to BF16 as well, and gradients inherit it
        assert 0.5 * bf16 < fp32 < bf16
    elif "pp" in layout:  # both uses of the tied embedding are still added up in BF16 where they meet on one stage
        assert fp32 < 0.6 * bf16
    else:  # nothing but the order of the sum differs
        assert bf16 > 1e-3
        assert fp32 < 1e-7
        ours, theirs = agreed[layout]["trained fp32"], agreed["one"]["trained fp32"]
        assert loss_distance(ours, theirs) < 1e-3
        differ = (flat(ours["weights"][1]) != flat(theirs["weights"][1])).double().mean().item()
        assert differ < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("layout", AGREEING)
def test_fifty_steps_end_with_equal_losses(agreed, layout):
    one, other = alone(agreed, layout), agreed[layout]
    # Another seed of the noise moves the losses further than another layout does.
    by_seed = loss_distance(one["trained with another seed"], one["trained bf16"])
    for kind, most in {"bf16": by_seed, "fp32": by_seed, "fp32 model": 1e-6}.items():
        losses = one[f"trained {kind}"]["losses"]
        assert len(losses) == 50
        assert losses[-1] < losses[0] - 0.3
        assert loss_distance(other[f"trained {kind}"], one[f"trained {kind}"]) < most < 1e-2, kind
