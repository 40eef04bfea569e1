# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""``sbatch slurm/run.slurm`` on a real SLURM with two nodes, and ``--dry-run`` without one."""

import os
import shutil
import subprocess

import pytest
from jobs import SCRIPT, submit, variables
from toy import ROOT, overrides


def test_training_runs_on_two_nodes_and_leaves_its_records(cluster, toy, tmp_path):
    run, log = tmp_path / "run", tmp_path / "log"
    words = [*overrides(toy, run, max_steps=8), "model.optim.lr=0.00125"]
    job = submit(cluster, log, *words)
    done = cluster.wait(job)
    shown = log.read_text()
    assert (done["JobState"], done["ExitCode"]) == ("COMPLETED", "0:0"), shown
    assert "trainer.num_nodes=2 from SLURM" in shown
    assert "Step 8 of 8: finished." in shown
    assert (run / "checkpoints/step_00000008").is_dir()
    records = run / "jobs" / f"{job}.0"
    assert "\n  lr: 0.00125 " in (records / "config.yaml").read_text()
    ranks = {path.name: path.read_text() for path in records.glob("rank_*.log")}
    assert sorted(ranks) == ["rank_0000.log", "rank_0001.log"]
    assert ranks["rank_0000.log"].strip() in shown
    found = (records / "environment.txt").read_text()
    assert "\nMASTER_ADDR=127.0.0.2\n" in found
    assert f"\nMASTER_PORT={12000 + int(job) % 18000}\n" in found
    assert "--ntasks=2 --ntasks-per-node=1 " in (records / "command.txt").read_text()
    assert "torch==" in (records / "packages.txt").read_text()
    assert (records / "code.txt").read_text().strip()
    assert (records / "plan.txt").is_file()
    assert not (run / "jobs/lock").exists()


@pytest.mark.slow
def test_without_an_argument_the_default_configuration_trains(cluster, toy, tmp_path):
    sample = tmp_path / "data/sample"
    shutil.copytree(toy.parent, sample)
    for ending in (".bin", ".idx"):
        (sample / f"toy{ending}").rename(sample / f"sample_text_document{ending}")
    places = {"DATA_DIR": str(tmp_path / "data"), "RESULTS_DIR": str(tmp_path / "results")}
    done = cluster.wait(cluster.submit(str(SCRIPT), cwd=ROOT, log=tmp_path / "log", **variables(), **places), 300)
    shown = (tmp_path / "log").read_text()
    assert (done["JobState"], done["ExitCode"]) == ("COMPLETED", "0:0"), shown
    assert "Step 300 of 300: finished." in shown
    assert (tmp_path / "results/gpt_tiny_cpu/checkpoints/step_00000300").is_dir()


def test_a_mismatch_ends_the_job_at_once(cluster, toy, tmp_path):
    log = tmp_path / "log"
    done = cluster.wait(submit(cluster, log, *overrides(toy, tmp_path / "run", max_steps=8), "trainer.num_nodes=3"))
    first = log.read_text().splitlines()[0]
    assert (done["JobState"], done["ExitCode"]) == ("FAILED", "2:0")
    assert first.startswith("error: trainer.num_nodes must be what SLURM has given the job, 2 nodes; it is 3.")
    assert not (tmp_path / "run").exists()


def test_a_dry_run_needs_no_slurm(toy, tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "dirname", "head", "env"):
        (programs / name).symlink_to(shutil.which(name))
    words = [*overrides(toy, tmp_path / "run", max_steps=8), "optim.name=adamw"]
    done = subprocess.run(
        [SCRIPT, "--dry-run", "-N", "4", "--ntasks-per-node=2", *words],
        env={**variables(), "PATH": str(programs)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2, done.stdout + done.stderr  # 16 samples for 8 ranks of 4
    assert "FAILED    parallel layout: model.global_batch_size must be a multiple" in done.stdout
    assert "ok        data and tokenizer" in done.stdout
    assert "    name: adamw " in done.stdout
    command = done.stdout.splitlines()[-1]
    assert command.startswith("  srun --export=ALL --nodes=4 --ntasks=8 --ntasks-per-node=2 --kill-on-bad-exit=1 ")
    assert command.rstrip().endswith("optim.name=adamw trainer.num_nodes=4 trainer.devices=2")
    assert not (tmp_path / "run").exists()


def test_a_job_that_was_submitted_elsewhere_says_so(tmp_path):
    env = {**os.environ, "SLURM_SUBMIT_DIR": str(tmp_path)}
    done = subprocess.run(["bash", "-s"], stdin=SCRIPT.open(), env=env, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(
        f"error: run.slurm must be submitted from the checkout, which holds slurm/job.sh; the folder is {tmp_path}."
    )
