# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Whole runs that save in the background, meet a damaged checkpoint and a disk that takes no more."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from toy import ROOT, environment, overrides, pretrain

from nemo_sr.training.launch import free_port
from nemo_sr.training.run_folder import find_checkpoints

PARAMS = "exp_manager.checkpoint_callback_params"
LIMIT = 100_000  # bytes of a file; a shard of the toy model has more, a log has not


def states(run):
    return {one.path.name: one.state for one in find_checkpoints(run / "checkpoints")}


@pytest.mark.slow
def test_a_run_passes_a_damaged_checkpoint_over_and_stops_when_it_cannot_save(toy_prefix, tmp_path):
    run = tmp_path / "run"
    words = [*overrides(toy_prefix, run, max_steps=12), f"{PARAMS}.every_n_train_steps=3", f"{PARAMS}.save_last_n=2"]
    first = pretrain(*words, f"{PARAMS}.async_save=true", "trainer.stop_after_steps=9")
    assert first.returncode == 0, first.stdout + first.stderr
    assert states(run) == {"step_00000006": "complete", "step_00000009": "complete"}  # 3 gone, 6 the best
    older, newest = (one for one in find_checkpoints(run / "checkpoints"))
    assert (older.manifest.val_loss is None, newest.manifest.val_loss is None) == (False, True)

    shard = newest.path / "__0_1.distcp"
    content = bytearray(shard.read_bytes())
    content[12345] ^= 1
    shard.write_bytes(content)
    partial = run / "checkpoints" / "partial_step_00000007"
    partial.mkdir()

    def let_no_file_grow():
        resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))

    second = subprocess.run(
        [sys.executable, str(ROOT / "scripts/pretrain_gpt.py"), *words],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        preexec_fn=let_no_file_grow,
    )
    assert second.returncode == 1, second.stdout + second.stderr
    assert second.stdout.splitlines()[:3] == [
        f"Left alone: {partial} is unfinished; its save was interrupted, or is under way.",
        f"WARNING: {newest.path} is damaged and left alone: __0_1.distcp is not the file that was written: its SHA-256 "
        "or size differs. The run goes on from step_00000006, 3 steps earlier.",
        f"Resuming from {older.path}: step 6 of 12.",
    ]
    assert "Traceback" not in second.stderr
    errors = [line for line in second.stderr.splitlines() if line.startswith("error: The checkpoint")]
    assert len(errors) == 1
    assert "of step 9 could not be saved: rank 0: Worker failure: __0_" in errors[0]
    assert f"File too large. The newest complete checkpoint is {older.path}, untouched" in errors[0]
    assert states(run) == {
        "step_00000006": "complete",
        partial.name: "partial",
        "partial_step_00000009": "partial",
        "step_00000009": "complete",  # until its shards are read
    }


def test_without_psutil_nothing_starts(toy_prefix, tmp_path):
    # As if it were not installed: the first of that name says what Python says of one that is not there.
    (tmp_path / "psutil.py").write_text("raise ModuleNotFoundError(\"No module named 'psutil'\", name='psutil')\n")
    env = environment()
    env["PYTHONPATH"] = f"{tmp_path}:{env['PYTHONPATH']}"
    command = [sys.executable, str(ROOT / "scripts/pretrain_gpt.py")]
    words = overrides(toy_prefix, tmp_path / "run", max_steps=12)
    done = subprocess.run([*command, *words], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert done.stderr == (
        "error: Saving a checkpoint needs the package psutil, which Megatron-core uses and does not require; it is not "
        "installed. Run: pip install psutil\n"
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("cut", [[], ["model.pipeline_model_parallel_size=2"]], ids=["dp2", "pp2"])
def test_a_run_that_saves_in_the_background_and_resumes_ends_with_the_same_bits(toy_prefix, tmp_path, cut):
    common = [f"{PARAMS}.every_n_train_steps=2", "model.hidden_dropout=0.1", *cut]
    whole, parts = (overrides(toy_prefix, tmp_path / name, max_steps=12) for name in ("whole", "parts"))
    jobs = {
        "whole": [*whole, *common],
        "first": [*parts, *common, f"{PARAMS}.async_save=true", "trainer.stop_after_steps=5"],
        "second": [*parts, *common, f"{PARAMS}.async_save=true"],
    }
    (tmp_path / "jobs.json").write_text(json.dumps({name: (free_port(), words) for name, words in jobs.items()}))
    launcher = ["-m", "torch.distributed.run", "--standalone", "--local_addr=127.0.0.1", "--nproc_per_node=2"]
    worker = [str(Path(__file__).with_name("worker.py")), str(tmp_path / "jobs.json"), str(tmp_path / "results.json")]
    command = [sys.executable, *launcher, *worker]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["second"]["weights"] == results["whole"]["weights"] != results["first"]["weights"]
    assert {**results["first"]["losses"], **results["second"]["losses"]} == results["whole"]["losses"]
    assert states(tmp_path / "parts") == states(tmp_path / "whole")
