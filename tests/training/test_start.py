# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""How a run starts: who launched it, where it resumes, which samples it reads."""

import json
import subprocess
import sys

import pytest
from stored import store
from toy import ROOT, environment, overrides

from nemo_sr.models.description import ModelDescription
from nemo_sr.training.batch import BatchSchedule
from nemo_sr.training.config import ConfigError, compose_config
from nemo_sr.training.datamodule import GlobalBatchSampler
from nemo_sr.training.launch import Launch, check_launch, detect_launch, exit_with
from nemo_sr.training.manifest import MANIFEST_FILE, find_altered, read_manifest, share_of
from nemo_sr.training.model_file import describe_model
from nemo_sr.training.resume import (
    STATE_FORMAT,
    checkpoint_folder,
    describe_change,
    find_start,
    find_unaltered_start,
    plan_data,
    plan_layout,
)
from nemo_sr.training.skipping import DivergedError, SkippedSteps
from nemo_sr.training.tokenizer import GPT2BPETokenizer
from nemo_sr.words import LR_ADVICE

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
SRUN = {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "4", "SLURM_NNODES": "2", "SLURM_PROCID": "1"}


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, Launch("none", 0, 1, 1)),
        (TORCHRUN, Launch("torchrun", 3, 4, 2)),
        (SRUN, Launch("slurm", 1, 4, 2)),
        ({**SRUN, **TORCHRUN}, Launch("torchrun", 3, 4, 2)),
        ({**SRUN, "SLURM_JOB_NAME": "interactive"}, Launch("none", 0, 1, 1)),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, Launch("none", 0, 1, 1)),
    ],
    ids=["person", "torchrun", "srun", "torchrun in srun", "interactive", "batch script"],
)
def test_the_launcher_is_detected(env, expected):
    assert detect_launch(env) == expected


@pytest.mark.parametrize(
    ("launch", "agrees"),
    [
        (Launch("torchrun", 0, 2, 2), True),
        (Launch("none", 0, 1, 1), True),
        (Launch("torchrun", 0, 1, 1), False),
        (Launch("slurm", 0, 4, 4), False),
        (Launch("slurm", 0, 2, 1), False),
    ],
)
def test_the_number_of_processes_must_agree(launch, agrees):
    trainer = compose_config([]).trainer
    if agrees:
        check_launch(launch, trainer)
    else:
        with pytest.raises(ConfigError, match=r"2 \* 1 = 2, and it started"):
            check_launch(launch, trainer)


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("consumed", [0, 16])
def test_a_step_reads_the_same_samples_on_any_number_of_ranks(num_ranks, consumed):
    micro, batch = 2, 16
    steps = [[] for _ in range((64 - consumed) // batch)]
    for rank in range(num_ranks):
        sampler = GlobalBatchSampler(
            64,
            consumed_samples=consumed,
            schedule=BatchSchedule(batch, batch, 1, 0),
            micro_batch_size=micro,
            rank=rank,
            num_ranks=num_ranks,
        )
        assert len(sampler) == len(steps)
        for step, indices in zip(steps, sampler, strict=True):
            assert len(indices) == batch // num_ranks
            step.extend(indices)
    for number, step in enumerate(steps):
        start = consumed + number * batch
        assert sorted(step) == list(range(start, start + batch))


@pytest.fixture
def run(toy_prefix, tmp_path):
    config = compose_config(overrides(toy_prefix, tmp_path / "run", max_steps=20))

    def save(step, state=None):
        usual = {
            "format": STATE_FORMAT,
            "step": step,
            "consumed_samples": step * 16,
            "data": plan_data(config),
            "optim_name": "adamw_sr",
            "skipped_steps": {"in_a_row": 0, "total": 0},
            "layout": plan_layout(config),
        }
        return store(checkpoint_folder(config), step, state=usual if state is None else state)

    return config, save


def test_a_run_starts_at_its_newest_complete_checkpoint(run):
    config, save = run
    assert find_start(config).checkpoint is None
    save(5)
    newest = save(10)
    damaged = save(15)
    (damaged / MANIFEST_FILE).unlink()
    partial = checkpoint_folder(config) / "partial_step_00000018"
    partial.mkdir()
    start = find_start(config)
    assert (start.step, start.consumed_samples, start.checkpoint) == (10, 160, newest)
    assert start.notes == (
        f"WARNING: {damaged} is damaged and left alone: it has no manifest.json. The run goes on from step_00000010, "
        "5 steps earlier.",
        f"Left alone: {partial} is unfinished; its save was interrupted, or is under way.",
        f"Resuming from {newest}: step 10 of 20.",
    )
    assert damaged.is_dir()
    assert partial.is_dir()


def test_a_run_whose_checkpoints_are_all_damaged_does_not_begin_anew(run):
    config, save = run
    (checkpoint_folder(config) / "partial_step_00000002").mkdir(parents=True)
    assert find_start(config).checkpoint is None
    for step in (5, 10):
        (save(step) / "__0_0.distcp").unlink()
    with pytest.raises(ConfigError, match=r"none in .* is complete\. .*__0_0\.distcp is missing.* move them away"):
        find_start(config)


@pytest.mark.parametrize("num_ranks", [1, 2, 9])
def test_altered_shards_are_found_by_all_ranks_together(run, num_ranks):
    config, save = run
    older, middle, newest = (save(step) for step in (5, 10, 15))
    start = find_start(config)
    assert start.checkpoint == newest
    for path, name in ((middle, "__0_0.distcp"), (newest, "__1_0.distcp")):
        content = bytearray((path / name).read_bytes())
        content[77] ^= 1
        (path / name).write_bytes(content)
    found = [[rank for rank in range(num_ranks) if _finds(path, rank, num_ranks)] for path in (newest, middle, older)]
    assert [len(ranks) for ranks in found] == [1, 1, 0]
    start = find_unaltered_start(config, start, rank=0, num_ranks=1, gather=lambda mine: [mine])
    assert start.checkpoint == older
    assert [note.split(":")[0] for note in start.notes] == ["WARNING", "WARNING", f"Resuming from {older}"]
    assert "__1_0.distcp is not the file that was written" in start.notes[1]


def _finds(path, rank, num_ranks):
    manifest = read_manifest(path)
    return bool(find_altered(path, manifest, share_of(manifest, rank, num_ranks)))


def test_fewer_steps_keep_the_saved_order_and_say_so(run):
    config, save = run
    save(10)
    config.trainer.max_steps = 15
    start = find_start(config)
    assert start.plan["train_samples"] == 320
    assert any("kept the checkpoint's 320, where 240 would do" in note for note in start.notes)


@pytest.mark.parametrize(
    ("group", "key", "value", "message"),
    [
        ("trainer", "max_steps", 30, "asked for 320 .* needs 480"),
        ("trainer", "limit_val_batches", 3, "asked for 32 .* needs 48"),
        ("data", "splits_string", "90,10,0", "depends on data.splits_string"),
        ("model", "seed", 1, "depends on model.seed"),
        ("model", "rampup_batch_size", [8, 8, 9], r"depends on model.rampup_batch_size; .* has None, .* \[8, 8, 9\]\."),
        ("model", "global_batch_size", 8, "depends on model.global_batch_size; the checkpoint has 16, .* 8"),
        ("optim", "name", "adamw", "must keep its optim.name"),
    ],
)
def test_a_resume_that_would_reorder_the_data_is_refused(run, group, key, value, message):
    config, save = run
    save(10)
    config[group][key] = value
    with pytest.raises(ConfigError, match=message):
        find_start(config)


def test_a_resume_on_other_data_under_the_same_prefix_is_refused(run, toy_prefix, tmp_path):
    config, save = run
    save(10)
    moved = tmp_path / "moved"
    for suffix in (".bin", ".idx"):
        moved.with_suffix(suffix).write_bytes(toy_prefix.with_suffix(suffix).read_bytes())
    config.data.data_prefix = str(moved)
    assert find_start(config).step == 10  # the same data elsewhere will do
    index = bytearray(moved.with_suffix(".idx").read_bytes())
    index[-1] ^= 1
    moved.with_suffix(".idx").write_bytes(index)
    with pytest.raises(ConfigError, match="depends on the contents of"):
        find_start(config)


def test_a_resume_with_other_blend_weights_is_refused(run, toy_prefix):
    config, save = run
    config.data.data_prefix = [0.3, str(toy_prefix), 0.7, str(toy_prefix)]
    save(10)
    assert find_start(config).step == 10
    config.data.data_prefix = [0.9, str(toy_prefix), 0.1, str(toy_prefix)]
    with pytest.raises(ConfigError, match=r"weights in data\.data_prefix; the checkpoint has \[0\.3, 0\.7\]"):
        find_start(config)


@pytest.mark.parametrize(
    ("new", "advice"),
    [("adamw_sr", None), ("adamw_bf16", None), ("adamw", "lower optim.lr")],
)
def test_a_new_run_goes_on_from_another_runs_checkpoint(run, tmp_path, new, advice):
    config, save = run
    source = save(10)
    config.exp_manager.explicit_log_dir = str(tmp_path / "new")
    config.exp_manager.resume_from_checkpoint = str(source)
    config.optim.name = new
    start = find_start(config)
    assert (start.step, start.consumed_samples, start.checkpoint) == (10, 160, source)
    assert [note for note in start.notes if "maximum learning rate" in note] == [
        note for note in start.notes if advice is not None and advice in note
    ]
    own = save(15)
    config.optim.name = "adamw_sr"
    assert find_start(config).checkpoint == own  # its own, once it has one


def test_only_who_leaves_stochastic_rounding_is_told_to_lower_the_rate():
    for saved, present, is_told in (
        ("adamw_sr", "adamw", True),
        ("adamw_sr", "adamw_fp32", True),
        ("adamw_bf16", "adamw", False),
        ("adamw_bf16", "adamw_fp32", False),
    ):
        (note,) = describe_change(saved, present)
        assert note.startswith(f"From {saved} to {present}: ")
        assert note.endswith("lower optim.lr.") == is_told


def test_a_new_run_begins_with_weights_alone_where_it_is_told_to(run, tmp_path):
    config, save = run
    source = save(10)
    config.exp_manager.explicit_log_dir = str(tmp_path / "new")
    config.model.restore_from_path = str(tmp_path)
    with pytest.raises(ConfigError, match=r"^model\.restore_from_path must be a checkpoint with run_state\.json"):
        find_start(config)
    config.model.restore_from_path = str(source)
    with pytest.raises(ConfigError, match="must say which model it holds"):  # one of before they did
        find_start(config)
    state = json.loads((source / "run_state.json").read_text())
    description = ModelDescription.from_config(config.model, 512)
    (source / "run_state.json").write_text(json.dumps({**state, **describe_model(description, {})}))
    with pytest.raises(ConfigError, match=r"^model\.restore_from_path must be a complete checkpoint; "):
        find_start(config)
    config.exp_manager.resume_from_checkpoint = str(source)
    with pytest.raises(ConfigError, match="must begin from one thing"):
        find_start(config)


def test_a_new_run_starts_from_a_checkpoint_of_megatrons(run, tmp_path):
    config, _ = run
    config.exp_manager.resume_from_checkpoint = str(tmp_path)
    with pytest.raises(ConfigError, match="has none of them"):
        find_start(config)
    (tmp_path / "metadata.json").write_text("{}")
    start = find_start(config)
    assert (start.step, start.consumed_samples, start.checkpoint) == (0, 0, tmp_path)
    assert not start.keeps_random_state
    assert start.notes[1].endswith(f"(nearest). {LR_ADVICE} optim.sr_lr_scale does both.")
    config.optim.name = "adamw_bf16"  # rounds to nearest
    assert find_start(config).notes[1].endswith("(nearest).")


def test_another_layout_leaves_the_random_states_out_and_says_so(run):
    config, save = run
    save(10)
    assert find_start(config).keeps_random_state
    config.trainer.devices = 1  # another number of data-parallel ranks cuts the model in no other way
    assert find_start(config).keeps_random_state
    config.model.tensor_model_parallel_size = 2
    start = find_start(config)
    assert not start.keeps_random_state
    assert "tensor_model_parallel_size=1" in start.notes[1]
    assert "tensor_model_parallel_size=2" in start.notes[1]
    assert "random states of dropout, one for each part of the model, begin anew" in start.notes[1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"format": 1, "step"', "is damaged. Restore it, or delete or move .*step_00000010"),
        ("[]", "is damaged"),
        ('{"format": 1}', "is damaged"),
        ('{"format": 99}', "must be of format 1; .* has format 99"),
    ],
)
def test_a_damaged_or_newer_checkpoint_is_refused(run, content, message):
    config, save = run
    save(10, content)
    with pytest.raises(ConfigError, match=message):
        find_start(config)


def test_skipped_steps_are_counted_and_end_the_run_when_too_many_follow_each_other():
    skipped = SkippedSteps(3)
    for step, norm in enumerate([1.0, float("nan"), float("inf"), 1.0, float("nan"), float("nan")], start=1):
        line = skipped.count(step, updated=norm == 1.0, grad_norm=norm)
        assert line == (None if norm == 1.0 else f"step {step}: skipped, since the norm of its gradients is {norm}")
    assert skipped.total == 4
    resumed = SkippedSteps(3)
    resumed.load_state_dict(skipped.state_dict())
    with pytest.raises(DivergedError, match=r"last 3 steps \(at step 7 it is nan\) \(rank 1: w\)"):
        resumed.count(7, updated=False, grad_norm=float("nan"), found="rank 1: w")
    assert resumed.state_dict() == {"in_a_row": 0, "total": 5}


@pytest.mark.parametrize(("rank", "speaker"), [(0, ""), (3, "rank 3: ")])
def test_a_rank_that_fails_alone_speaks(rank, speaker, capsys, monkeypatch):
    monkeypatch.setattr("nemo_sr.training.launch._SECONDS_FOR_RANK_0", 0.0)
    with pytest.raises(SystemExit) as ended:
        exit_with("what is wrong", Launch("torchrun", rank, 4, 4))
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"{speaker}error: what is wrong\n"


def test_the_tokenizer_reads_gpt2s_files_and_refuses_others(toy_prefix, tmp_path):
    vocab, merges = toy_prefix.parent / "gpt2-vocab.json", toy_prefix.parent / "gpt2-merges.txt"
    tokenizer = GPT2BPETokenizer(vocab, merges)
    assert (tokenizer.vocab_size, tokenizer.eod) == (512, 511)
    text = "What goes in, comes out."
    assert tokenizer.detokenize(tokenizer.tokenize(text)) == text
    ids = json.loads(vocab.read_text())
    del ids["<|endoftext|>"]
    for content in ("not JSON", json.dumps(ids)):
        other = tmp_path / "vocab.json"
        other.write_text(content)
        with pytest.raises(ConfigError, match=r"model\.tokenizer\.vocab_file .* JSON|<\|endoftext\|>"):
            GPT2BPETokenizer(other, merges)


def test_an_installed_copy_finds_its_configurations(tmp_path):
    build = [sys.executable, "setup.py", "--quiet", "build", f"--build-base={tmp_path}", f"--build-lib={tmp_path}/lib"]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    command = [sys.executable, "-m", "nemo_sr.training.pretrain", "--help"]
    env = {**environment(), "PYTHONPATH": str(tmp_path / "lib")}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "gpt_tiny_cpu   A small GPT-2" in done.stdout
    assert (tmp_path / "lib/nemo_sr/conf/gpt_tiny_cpu.yaml").is_file()
