# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Megatron-core checkpoints of adamw_sr: across layouts, to and from FP32 masters, and what is refused."""

import itertools
import math

import pytest
from crossings import LAYOUTS, run_crossings
from tiny_gpt import single_process

from lines import BOXES, GRIDS_ALONE, STOCK_BY_BUCKETS
from nemo_sr.megatron.boxes import cut_into_boxes
from nemo_sr.megatron.checkpoint import match_groups, read_groups

# One rank's checkpoints are loaded on four, those of four on two; with one virtual pipeline, with the distributed
# optimizer switched on and off.
ORDINARY = [
    ("dp1", "dp4"),
    ("dp1 replicated", "tp2pp2"),
    ("dp4 replicated", "dp2tp2"),
    ("dp4", "tp2"),
    ("tp2pp2", "dp2 replicated"),
    ("dp2tp2", "vp2"),
    ("vp2", "pp2 replicated"),
]
PADDED = [("dp1 norm", "dp4 norm"), ("dp4 norm", "dp2 norm")]
EVERY = list(itertools.product(LAYOUTS, LAYOUTS))


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return run_crossings(ORDINARY + PADDED, tmp_path_factory.mktemp("crossings"), phases=(1, 4, 2), cases_on=2)


@pytest.fixture(scope="module")
def expected(found):
    return expect(found["source"]["dp1"])


def expect(source):
    return single_process(source["shapes"], steps=13)[0]


def check_pair(found, expected, pair):
    assert found["source"][pair[0]]["digest"] == expected  # the run that never stopped
    assert found["pair"][pair] == {"digest": expected, "steps": True}


@pytest.mark.parametrize("pair", ORDINARY, ids=" to ".join)
def test_a_run_goes_on_in_another_layout_to_the_bit(found, expected, pair):
    check_pair(found, expected, pair)


@pytest.mark.parametrize("pair", PADDED, ids=" to ".join)
def test_ranks_that_hold_nothing_but_padding_go_along(found, pair):
    assert found["source"]["dp4 norm"]["padding only"] == 2
    check_pair(found, expect(found["source"]["dp1 norm"]), pair)


@pytest.mark.parametrize("layout", ["dp1", "dp4", "dp1 replicated"])
def test_a_checkpoint_has_six_bytes_a_parameter(found, layout):
    source = found["source"][layout]
    parameters = sum(math.prod(shape) for shape in source["shapes"].values())
    assert source["tensor bytes"] == 6 * parameters


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_layout_goes_on_in_every_other_to_the_bit(expected, tmp_path):
    found = run_crossings(EVERY, tmp_path, timeout=1800)
    for pair in EVERY:
        check_pair(found, expected, pair)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param("fully_reshardable", marks=BOXES),
        pytest.param("dp_reshardable", marks=STOCK_BY_BUCKETS),
        "not distributed",
        "not distributed, loaded distributed",
    ],
)
def test_a_run_starts_from_megatrons_own_masters(found, case):
    result = found["cases"][f"from masters, {case}"]
    assert result["right"]
    assert len(result["advice"]) == 1
    assert "2 to 4 times" in result["advice"][0]


@BOXES
def test_megatrons_own_adam_goes_on_from_a_checkpoint_without_masters(found):
    assert found["cases"]["to masters"]


@BOXES
@pytest.mark.parametrize("kind", ["distributed", "not distributed"])
def test_megatrons_own_methods_load_masters_that_point_at_the_weights(found, kind):
    assert found["cases"][f"masters added, {kind}"]


@BOXES
def test_megatrons_own_adam_resumes_with_several_buckets(found):
    assert found["cases"]["masters resumed"]


@GRIDS_ALONE
def test_shards_of_masters_are_refused_where_checkpoints_take_no_boxes(found):
    assert "must be 0.15 or newer" in found["cases"]["masters refused"]


def test_megatrons_parallel_strategies_save_and_load(found):
    assert found["cases"]["parallel strategies"]


def test_a_checkpoint_that_fits_is_not_refused(found):
    assert found["cases"]["refusals"]["fits"] == {"message": None, "unchanged": True}


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("vocabulary", "its vocabulary has 96 tokens, and 95 are wanted"),
        ("larger vocabulary", "its vocabulary has 96 tokens, and 257 are wanted"),
        ("from larger vocabulary", "how many of the 258 rows"),
        ("deeper", "has the shape (2, "),
        ("from deeper", "has the shape (3, "),
        ("gated", "has the shape (2, 64, 32), and (2, 128, 32) is wanted"),
        ("grouped", "linear_qkv"),
        ("missing file", "are missing"),
        ("truncated file", "are truncated"),
        ("nothing there", "it cannot be read"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_on_all_ranks_alike(found, case, message):
    refused = found["cases"]["refusals"][case]
    assert isinstance(refused["message"], str)
    assert message in refused["message"]
    assert "Nothing has been loaded" in refused["message"]
    assert refused["unchanged"]


@pytest.mark.parametrize("shape", [(), (7,), (5, 4), (3, 1, 4), (2, 3, 4, 2)])
def test_boxes_are_the_run_in_order(shape):
    whole = list(itertools.product(*map(range, shape)))
    for start, stop in itertools.combinations_with_replacement(range(len(whole) + 1), 2):
        boxes = list(cut_into_boxes(shape, start, stop))
        places = [
            tuple(a + b for a, b in zip(offset, inner, strict=True))
            for offset, size in boxes
            for inner in itertools.product(*map(range, size))
        ]
        assert places == whole[start:stop]
        assert len(boxes) <= max(2 * len(shape) - 1, 1)


def test_groups_are_read_from_every_optimizer_of_megatrons():
    groups = [{"wd_mult": 1.0, "step": 4}, {"wd_mult": 0.0, "step": 4}]
    assert read_groups({"optimizer": {"param_groups": groups}}) == (groups, 4)
    bare = [{"wd_mult": 1.0}]
    assert read_groups({"optimizer": {"param_groups": bare, "state": {"common_step": 5}}}) == (bare, 5)
    assert read_groups({"param_groups": bare, "state": {"common_step": 5}}) == (bare, 5)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, "it has nothing"),
        ({"optimizer": {"param_groups": [{"step": 1}, {"step": 2}]}}, r"it has \[1, 2\]"),
        ({"optimizer": {"param_groups": [{}]}}, "it has none"),
    ],
)
def test_groups_without_one_step_are_refused(state, message):
    with pytest.raises(ValueError, match=message):
        read_groups(state)


def test_groups_of_one_identity_are_matched_in_their_order():
    def group(decay, number):
        keys = {"lr_mult": 1.0, "is_expert_parallel": False, "is_decoupled_lr": False}
        return {"wd_mult": decay, **keys, "number": number}

    saved = [group(1.0, 0), group(0.0, 1), group(1.0, 2)]
    present = [group(0.0, None), group(1.0, None), group(1.0, None)]
    assert [found["number"] for found in match_groups(saved, present)] == [1, 0, 2]
    with pytest.raises(ValueError, match="must match"):
        match_groups(saved[:2], present)
