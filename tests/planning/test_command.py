# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The command line of scripts/plan.py."""

import json

import pytest

from nemo_sr.planning.command import main

TINY = ["--gpus", "2", "model.num_layers=2", "model.global_batch_size=64"]
GPU = ["trainer.accelerator=gpu"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--config-name=gpt_neo_6b"], r"'gpt_neo_6b' is not there"),
        (["optim.lrr=1"], "'optim.lrr' is none of them. Near it: optim.lr"),
        (["optim.name=adam"], "it is 'adam'"),
        (["--gpus", "12"], "--gpus must be a multiple of --gpus-per-node, or less; they are 12 and 8"),
        (["--gpus", "0"], "--gpus must be at least 1; it is 0"),
        (["--gpus", "6", "model.tensor_model_parallel_size=4"], "must divide the number of ranks; they are 4 * 1 = 4"),
        (["--gpus", "64", "model.global_batch_size=32"], "must be a multiple of model.micro_batch_size"),
        (["--gpu-memory", "-80"], "--gpu-memory must be above --reserve, in GiB; they are -80 and 4"),
        (["--gpu-memory", "nan"], "--gpu-memory must be above --reserve"),
        (["--reserve", "-1"], "--reserve must be at least 0; it is -1"),
        (["model.micro_batch_size=0"], "model.micro_batch_size must be at least 1; it is 0"),
        (["model.tokenizer.vocab_file=/nowhere/v.json"], "/nowhere/v.json"),
    ],
)
def test_what_cannot_be_planned_ends_with_one_message(words, message, capsys):
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert err.startswith("error: ")
    assert message in err


def test_json_and_tables_agree_and_a_small_gpu_is_too_small(capsys):
    assert main([*TINY, *GPU, "--json", "--top", "0"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["fits"]
    assert plan["layout"]["data_parallel"] == 2
    sizes = plan["strategies"]
    assert sizes["adamw_sr"]["weights"] * 2 == sizes["adamw_amp"]["weights"]
    assert sizes["adamw"]["masters"] * 2 == sizes["adamw"]["moments"] == 2 * sizes["adamw_sr"]["moments"]
    for size in sizes.values():
        parts = ("weights", "gradients", "moments", "masters", "activations", "communication")
        assert size["total"] == sum(size[part] for part in parts)
    assert 0 < sizes["adamw_sr"]["saving_against_o2"] < sizes["adamw_sr"]["saving_against_o1"] < 1

    memory = 1.001 + sizes["adamw_sr"]["total"] / 2**30
    assert main([*TINY, *GPU, "--top", "0", "--reserve", "1", "--gpu-memory", str(memory)]) == 0
    assert "FITS: adamw_sr with TP 1, PP 1, DP 2" in capsys.readouterr().out
    assert main([*TINY, *GPU, "--top", "2", "--reserve", "1.002", "--gpu-memory", str(memory)]) == 1
    out, err = capsys.readouterr()
    assert "warning: DOES NOT FIT: adamw_sr" in err
    assert "The fastest that fits: TP " in err
    assert "│ adamw_amp" in out


def test_layouts_are_ranked_by_their_estimated_time_and_fit(capsys):
    assert main([*TINY, *GPU, "--top", "1000", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    times = [one["step"]["total"] for one in plan["layouts"]]
    assert len(times) > 10
    assert times == sorted(times)
    assert all(one["total"] <= plan["gpu_memory"] - plan["reserve"] for one in plan["layouts"])
    own = [one for one in plan["layouts"] if one["layout"] == plan["layout"]]
    assert own[0]["step"] == plan["step"]
