# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Whole runs on two real processes over gloo: the command line, resuming to the bit, layouts, strategies."""

import re
import signal
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from planned_bytes import check_planned_bytes
from run_logs import check_logs, check_trace
from toy import overrides, pretrain, read_tensors, run_jobs, start_pretrain

from nemo_sr.training.run_folder import checkpoint_name
from nemo_sr.words import LR_ADVICE

# One process starts all runs of a file: it takes longer than such a run.
CUTS = {
    "tp2": ["model.tensor_model_parallel_size=2", "model.sequence_parallel=true"],
    "pp2": ["model.pipeline_model_parallel_size=2"],
}
# optim.name: the types of weights, gradients, moments, masters, and of what matrix products take and give.
BF16, FP32 = "torch.bfloat16", "torch.float32"
STRATEGIES = {
    "adamw": (BF16, FP32, FP32, [FP32], BF16),
    "adamw_sr": (BF16, BF16, BF16, [], BF16),
    "adamw_bf16": (BF16, BF16, BF16, [], BF16),
    "adamw_amp": (FP32, FP32, FP32, [], BF16),
    "adamw_fp32": (FP32, FP32, FP32, [], FP32),
}
CHANGES = [("adamw", "adamw_sr"), ("adamw_sr", "adamw"), ("adamw_sr", "adamw_fp32"), ("adamw_fp32", "adamw_sr")]
WATCHED = ["exp_manager.create_csv_logger=true", "trainer.telemetry_every_n_steps=10"]
PROFILED = [f"model.torch_profile.{word}" for word in ("enabled=true", "start_step=3", "end_step=4", "ranks=[1]")]
LOGGERS = [
    *WATCHED,
    "exp_manager.create_wandb_logger=true",
    "exp_manager.wandb_logger_kwargs.project=tests",
    "exp_manager.wandb_logger_kwargs.offline=true",
]
PHASES = ("launcher", "imports", "configuration", "plan", "process groups", "logging", "data", "model", "checkpoint")
STARTED = "Start-up: " + "".join(rf"{phase} \d+\.\d s, " for phase in PHASES) + r"first step \S+ s; \d+\.\d s in all\."
GROWING = {
    "ramp": [
        "model.rampup_batch_size=[8,8,60]",
        "model.activations_checkpoint_granularity=full",
        "model.activations_checkpoint_method=block",
    ],
}
DROPOUT = ["model.hidden_dropout=0.1", "model.attention_dropout=0.1"]
# With constant steps NeMo's CosineAnnealing gives all groups the first one's rate.
DECOUPLED = [
    "optim.decoupled_lr=6e-3",
    "optim.sched.constant_steps=2",
    "model.share_embeddings_and_output_weights=false",
]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["optim.lrr=1"], r"'optim\.lrr' is none of them"),
        (["optim.name=adam"], "it is 'adam'"),
        (["data.data_prefix=/nowhere/data"], r"/nowhere/data\.idx"),
    ],
)
def test_bad_input_ends_with_one_message(words, message, toy_prefix, tmp_path):
    done = pretrain(*overrides(toy_prefix, tmp_path / "run", max_steps=20), *words)
    assert done.returncode == 2
    assert re.search(message, done.stderr)
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_bad_input_ends_every_rank_under_torchrun(toy_prefix, tmp_path):
    words = [*overrides(toy_prefix, tmp_path / "run", max_steps=20), "model.tensor_model_parallel_size=4"]
    done = pretrain(*words, torchrun=2, timeout=120)
    assert done.returncode != 0
    message = "must divide the number of ranks; they are 4 * 1 = 4 and trainer.devices * trainer.num_nodes = 2"
    assert done.stderr.count(message) == 1
    assert "pretrain.py" not in done.stderr  # no traceback of ours; torchrun adds its own report
    assert not (tmp_path / "run").exists()


def test_torchrun_with_another_number_of_processes_is_refused(toy_prefix, tmp_path):
    done = pretrain(*overrides(toy_prefix, tmp_path / "run", max_steps=20), torchrun=1, timeout=120)
    assert done.returncode != 0
    assert "2 * 1 = 2, and it started 1" in done.stderr


def test_help_names_configs_groups_strategies_and_launchers():
    done = pretrain("--help")
    assert done.returncode == 0
    for word in ("gpt_tiny_cpu", "gpt_neo_350m", "adamw_sr_paper", "BF16+SR", "torchrun", "srun", "optim.lr="):
        assert word in done.stdout


@pytest.mark.slow
def test_a_run_that_goes_over_to_stochastic_rounding_gets_the_advice_on_its_rate_once(toy_prefix, tmp_path):
    mixed, rounded = (overrides(toy_prefix, tmp_path / name, max_steps=10) for name in ("mixed", "rounded"))
    first = pretrain(*mixed, "optim.name=adamw", "trainer.stop_after_steps=4")
    assert first.returncode == 0, first.stderr
    source = tmp_path / "mixed" / "checkpoints" / checkpoint_name(4)
    second = pretrain(*rounded, "optim.name=adamw_sr", f"exp_manager.resume_from_checkpoint={source}")
    assert second.returncode == 0, second.stderr
    assert (second.stdout + second.stderr).count(LR_ADVICE) == 1
    assert "Step 10 of 10: finished." in second.stdout


def test_a_terminated_run_resumes_to_the_bit_and_a_finished_one_says_so(toy_prefix, tmp_path):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    saved = stopped / "checkpoints" / checkpoint_name(_terminate_at_step_5(toy_prefix, stopped))
    named = f"data.validation_sets=[same,{toy_prefix}]"  # from the resumption on, in the second
    runs = {
        "whole": [*overrides(toy_prefix, whole, max_steps=100), *DROPOUT, *LOGGERS, *PROFILED, named],
        # NeMo's older spelling picks the same strategy.
        "second": [
            *overrides(toy_prefix, stopped, max_steps=100),
            *DROPOUT,
            *WATCHED,
            "+model.optim.name=adamw_sr",
            named,
        ],
    }
    done = {name: pretrain(*words) for name, words in runs.items()}
    for name, result in done.items():
        assert result.returncode == 0, (name, result.stdout, result.stderr)
        assert "Traceback" not in result.stderr
    assert f"Resuming from {saved}: step " in done["second"].stdout
    lines = done["whole"].stdout.splitlines()
    assert [bool(re.fullmatch(STARTED, line)) for line in lines].count(True) == 1
    planned = r"Planned memory: \S+ MiB on the fullest rank \(weights .*\); this machine has \S+ .iB free for 2 ranks\."
    assert [bool(re.fullmatch(planned, line)) for line in lines].count(True) == 1
    line = (
        r"step 100/100  loss \S+  val_loss \S+ \(ppl \S+\)  lr \S+  grad_norm \S+  tokens/s \d+  step \S+ s  "
        r"TFLOP/s \S+  mem \d+ MiB  eta 0:00:00"
    )
    assert [match for match in lines if re.fullmatch(line, match)]
    validated = r"step 50/100  validation loss \S+  perplexity \S+  validation loss same \S+  perplexity \S+"
    assert [match for match in lines if re.fullmatch(validated, match)]
    for folder in (whole, stopped):
        assert (folder / "loss.png").read_bytes().startswith(b"\x89PNG")
        assert OmegaConf.load(folder / "config.yaml").trainer.max_steps == 100
        assert [path.name for path in (folder / "checkpoints").glob("partial*")] == []

    expected, resumed = (read_tensors(folder / "checkpoints" / checkpoint_name(100)) for folder in (whole, stopped))
    assert expected.keys() == resumed.keys()
    assert len(expected) > 10
    assert [name for name in expected if not torch.equal(expected[name], resumed[name])] == []
    # The comparison can fail: before the resumption everything but the padding was different.
    before = read_tensors(saved)
    assert any(not torch.equal(expected[name], before[name]) for name in expected)
    check_logs(whole, stopped)
    check_trace(whole)
    said = [line for line in lines if line.startswith("  rounding         ")]
    assert len(said) == 4
    assert "The rounding is unbiased within noise" in said[1]
    assert (
        sum(re.match(r"step \d+/100  rounding: \S+% of updates below half an ulp", line) is not None for line in lines)
        == 10
    )

    again = pretrain(*runs["second"])
    assert again.returncode == 0
    assert "This run is finished" in again.stdout
    # The same three lines as in the summary.
    places = done["second"].stdout.partition("Step 100 of 100: finished.\n")[2].splitlines()[:3]
    assert again.stdout.splitlines()[-3:] == places
    assert str(stopped / "loss.png") in places[2]


def _terminate_at_step_5(toy_prefix, run: Path) -> int:
    process = start_pretrain(*overrides(toy_prefix, run, max_steps=100), *DROPOUT, *WATCHED)
    lines = []
    try:
        for line in process.stdout:
            lines.append(line)
            if line.startswith("step 5/"):
                process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0, "".join(lines)
    finally:
        process.kill()
    stops = re.findall(r"Step (\d+) of 100: stopped; the same command resumes\.", "".join(lines))
    assert len(stops) == 1, "".join(lines)
    assert [path.name for path in (run / "checkpoints").iterdir()] == [checkpoint_name(int(stops[0]))]
    return int(stops[0])


@pytest.fixture(scope="module")
def results(toy_prefix, tmp_path_factory):
    folder = tmp_path_factory.mktemp("jobs")
    jobs = {
        "dp2": [*overrides(toy_prefix, folder / "dp2", max_steps=40)],
        "tp2": [*overrides(toy_prefix, folder / "tp2", max_steps=40), "model.tensor_model_parallel_size=2"],
        "pp2": [*overrides(toy_prefix, folder / "pp2", max_steps=40), "model.pipeline_model_parallel_size=2"],
    }
    for name in STRATEGIES:
        words = [*DROPOUT, *DECOUPLED, f"optim.name={name}", "optim.weight_decay=0.125"]
        whole, stopped = (overrides(toy_prefix, folder / f"{name}_{kind}", max_steps=10) for kind in ("a", "b"))
        # With telemetry and without: that it changes no bit is tested where runs are resumed.
        jobs[f"{name} whole"] = [*whole, *words, "trainer.telemetry_every_n_steps=3"]
        words.append("trainer.telemetry_every_n_steps=null")
        jobs[f"{name} stopped"] = [*stopped, *words, "trainer.stop_after_steps=5"]
        jobs[f"{name} resumed"] = [*stopped, *words]
    for name, words in {**CUTS, **GROWING}.items():
        whole, stopped = (overrides(toy_prefix, folder / f"{name}_{kind}", max_steps=10) for kind in ("a", "b"))
        jobs[f"{name} whole"] = [*whole, *DROPOUT, *words]
        jobs[f"{name} stopped"] = [*stopped, *DROPOUT, *words, "trainer.stop_after_steps=5"]
        jobs[f"{name} resumed"] = [*stopped, *DROPOUT, *words]
    for name in ("adamw_amp", "adamw_fp32"):
        for cut, words in CUTS.items():
            one = overrides(toy_prefix, folder / f"{name}_{cut}", max_steps=10)
            jobs[f"{name} {cut}"] = [*one, words[0], f"optim.name={name}"]  # O1 has no sequence parallelism
        jobs[f"{name} dp2"] = [*overrides(toy_prefix, folder / f"{name}_dp2", max_steps=10), f"optim.name={name}"]
    for name in ("adamw", "adamw_sr", "adamw_fp32"):
        moved = [*overrides(toy_prefix, folder / f"{name}_moved", max_steps=40), f"optim.name={name}"]
        jobs[f"{name} moves"] = [*moved, "trainer.stop_after_steps=20"]
        jobs[f"{name} moved"] = [*moved, "model.tensor_model_parallel_size=2", "trainer.stop_after_steps=30"]
    for old, new in CHANGES:
        source = folder / f"{old}_moved" / "checkpoints" / checkpoint_name(20)
        words = [f"optim.name={new}", f"exp_manager.resume_from_checkpoint={source}", "trainer.stop_after_steps=30"]
        jobs[f"{new} from {old}"] = [*overrides(toy_prefix, folder / f"{new}_from_{old}", max_steps=40), *words]
    for name, seed in (("same", 1234), ("other", 7)):
        words = [*overrides(toy_prefix, folder / f"{name}_seed", max_steps=10), *DROPOUT, *DECOUPLED]
        jobs[f"{name} seed"] = [*words, "optim.name=adamw_sr", "optim.weight_decay=0.125", f"model.seed={seed}"]
    newest = f"model.restore_from_path={folder / 'adamw_sr_a'}"
    jobs["restored"] = [*overrides(toy_prefix, folder / "restored", max_steps=10), *DROPOUT, *DECOUPLED, newest]
    timed = overrides(toy_prefix, folder / "timed", max_steps=1000)
    jobs["timed"] = [*timed, "trainer.max_time='00:00:00:01'"]
    # The last one: it leaves its process groups behind.
    diverging = ["optim.name=adamw", "optim.lr=1e30", "trainer.max_skipped_steps=3"]
    jobs["diverged"] = [*overrides(toy_prefix, folder / "diverged", max_steps=20), *diverging]
    return run_jobs(folder, jobs, num_ranks=2)


def test_layouts_end_with_equal_losses(results):
    layouts = {name: results[name] for name in ("dp2", "tp2", "pp2")}
    for kind in ("losses", "val_losses"):
        first = [result[kind][min(result[kind], key=int)] for result in layouts.values()]
        last = [result[kind]["40"] for result in layouts.values()]
        assert max(last) < min(first) - 0.3  # they learned
        assert max(last) - min(last) < 1e-2
    # The initial weights do not depend on the layout, so that the first loss differs by BF16 rounding alone.
    first = [result["losses"]["1"] for result in layouts.values()]
    assert max(first) - min(first) < 1e-3


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_keeps_the_types_that_its_name_says(results, name):
    *kinds, masters, products = STRATEGIES[name]
    assert results[f"{name} whole"]["types"] == {
        **{kind: [dtype] for kind, dtype in zip(("weights", "gradients", "moments"), kinds, strict=True)},
        "masters": masters,
        "products": [products],
    }


@pytest.mark.parametrize(
    "name",
    [
        *(f"{name} whole" for name in (*STRATEGIES, *CUTS, *GROWING)),
        "adamw_amp tp2",
        "adamw_amp pp2",
        "adamw_fp32 pp2",
        "pp2",
    ],
)
def test_a_rank_holds_the_bytes_that_were_planned(results, name):
    check_planned_bytes(results[name]["words"], results[name]["bytes"])


@pytest.mark.parametrize("name", ["adamw_amp", "adamw_fp32"])
def test_fp32_weights_train_alike_in_every_layout(results, name):
    losses = [results[f"{name} {layout}"]["losses"] for layout in ("dp2", *CUTS)]
    assert losses[0]["10"] < losses[0]["1"] - 0.2
    for other in losses[1:]:
        # Without autocast nothing is rounded to BF16.
        assert other == pytest.approx(losses[0], abs=2e-5 if name == "adamw_fp32" else 2e-3)
    types = [results[f"{name} {layout}"]["types"] for layout in ("dp2", *CUTS)]
    assert all(one == types[0] for one in types)


@pytest.mark.parametrize("name", [*STRATEGIES, *CUTS, *GROWING])
def test_a_strategy_resumes_to_the_bit(results, name):
    whole, stopped, resumed = (results[f"{name} {kind}"] for kind in ("whole", "stopped", "resumed"))
    assert stopped["weights"] != whole["weights"]
    assert resumed["weights"] == whole["weights"]
    for kind in ("losses", "learning_rates"):
        assert {**stopped[kind], **resumed[kind]} == whole[kind]


def test_a_run_saves_and_stops_after_its_time(results):
    steps = len(results["timed"]["losses"])
    assert 1 <= steps < 1000
    folder = Path(dict(word.split("=", 1) for word in results["timed"]["words"])["exp_manager.explicit_log_dir"])
    assert [path.name for path in (folder / "checkpoints").iterdir()] == [checkpoint_name(steps)]


def test_a_run_begins_with_the_weights_of_another_and_nothing_else(results):
    source, restored = results["adamw_sr whole"], results["restored"]
    assert restored["sources"]["weights"] == source["weights"].split()[0]
    assert {**restored["sources"], "weights": ""} == {**source["sources"], "weights": ""}
    assert restored["learning_rates"] == source["learning_rates"]
    assert restored["losses"]["1"] < source["losses"]["1"] - 0.1


def test_the_seed_alone_decides_everything(results):
    # Between the two that have one seed came other runs, which left torch's, NumPy's and Python's generators elsewhere.
    first, same, other = (results[name] for name in ("adamw_sr whole", "same seed", "other seed"))
    assert same["sources"] == first["sources"]
    assert same["losses"] == first["losses"]
    assert same["weights"] == first["weights"]
    assert [kind for kind in first["sources"] if first["sources"][kind] == other["sources"][kind]] == []
    assert list(first["sources"]) == ["weights", "data", "dropout", "noise"]
    assert first["sources"]["noise"] == 1234


@pytest.mark.parametrize("name", ["adamw", "adamw_sr"])
def test_a_run_goes_on_under_another_layout(results, name):
    moves, moved = results[f"{name} moves"]["losses"], results[f"{name} moved"]["losses"]
    assert [min(moved, key=int), max(moved, key=int)] == ["21", "30"]
    if name == "adamw_sr":
        assert max(abs(moved[step] - results["dp2"]["losses"][step]) for step in moved) < 1e-2
    # It went on: the first step after the move is nowhere near the loss at the start.
    assert moved["21"] < moves["20"] + 0.1 < moves["1"] - 0.1


@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_a_new_run_goes_on_from_another_strategys_checkpoint(results, old, new):
    before, after = results[f"{old} moves"]["losses"], results[f"{new} from {old}"]
    assert after["optimizer_class"] == ("AdamWSR" if new == "adamw_sr" else "AdamW")
    assert [min(after["losses"], key=int), max(after["losses"], key=int)] == ["21", "30"]
    assert after["losses"]["21"] < before["20"] + 0.1 < before["1"] - 0.1


def test_a_run_that_diverges_skips_and_stops(results):
    diverged = results["diverged"]
    assert "last 3 steps (at step 4 it is nan) (rank 0: embedding" in diverged["error"]
    assert list(diverged["losses"]) == ["1", "2", "3"]
    assert diverged["finite"]


def test_each_strategy_has_its_own_optimizer(results):
    classes = {name: results[f"{name} whole"]["optimizer_class"] for name in STRATEGIES}
    own = {"adamw_sr": "AdamWSR", "adamw_bf16": "AdamWBF16"}
    assert classes == {name: own.get(name, "AdamW") for name in STRATEGIES}
    assert len({results[f"{name} whole"]["weights"] for name in classes}) == len(STRATEGIES)


@pytest.mark.parametrize("name", ["adamw", "adamw_sr"])
@pytest.mark.parametrize(("start", "step"), [("whole", 1), ("resumed", 6)])
def test_biases_and_norms_do_not_decay(results, name, start, step):
    assert results[f"{name} {start}"]["decays"] == {
        "step": step,
        "linear_fc1.bias": 0.0,
        "final_layernorm.weight": 0.0,
        "linear_fc1.weight": 0.125,
        "word_embeddings.weight": 0.125,
        "position_embeddings.weight": 0.125,
        "output_layer.weight": 0.125,
    }


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize(("start", "steps"), [("whole", range(1, 11)), ("resumed", range(6, 11))])
def test_token_embedding_and_output_layer_have_a_rate_of_their_own(results, name, start, steps):
    found = results[f"{name} {start}"]
    assert [int(step) for step in found["rates"]] == list(steps)
    for step, rates in found["rates"].items():
        lr = rates["linear_fc1.weight"]
        assert lr == pytest.approx(found["learning_rates"][step], rel=1e-6)  # that one was logged in FP32
        assert rates == {
            "linear_fc1.bias": lr,
            "final_layernorm.weight": lr,
            "linear_fc1.weight": lr,
            "word_embeddings.weight": 2 * lr,
            "position_embeddings.weight": lr,
            "output_layer.weight": 2 * lr,
        }


def test_the_schedule_warms_up_and_reaches_its_minimum(results):
    rates = results["dp2"]["learning_rates"]
    assert rates["1"] == pytest.approx(3e-3 / 4, rel=1e-6)
    assert max(rates.values()) == rates["4"] == pytest.approx(3e-3, rel=1e-6)
    assert 3e-4 < rates["40"] < 3.1e-4
