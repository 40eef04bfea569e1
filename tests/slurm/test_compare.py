# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""``slurm/compare.slurm`` on a real SLURM: one configuration, each strategy in a job of its own."""

import subprocess

import pytest
from jobs import variables
from toy import ROOT, overrides

pytestmark = pytest.mark.slow


def test_strategies_train_side_by_side_and_are_shown(cluster, toy, tmp_path):
    words = [word for word in overrides(toy, tmp_path, max_steps=8) if "explicit_log_dir" not in word]
    options = ("-N2", "--ntasks-per-node=1", "--array=0,2%1", "--job-name=pair")
    environment = {**variables(), "RESULTS_DIR": str(tmp_path)}
    script = str(ROOT / "slurm/compare.slurm")
    job = cluster.submit(*options, script, *words, cwd=ROOT, log=tmp_path / "log.%a", **environment)
    for number in (0, 2):
        done = cluster.wait(f"{job}_{number}", 300)
        shown = (tmp_path / f"log.{number}").read_text()
        assert (done["JobState"], done["ExitCode"]) == ("COMPLETED", "0:0"), shown
    assert (tmp_path / "pair/adamw_sr/checkpoints/step_00000008").is_dir()
    assert (tmp_path / "pair/adamw/checkpoints/step_00000008").is_dir()
    table = subprocess.run([script, "--table", "pair"], env={**cluster.environment, **environment}, capture_output=True)
    lines = table.stdout.decode().splitlines()
    assert [line.split()[0] for line in lines] == [
        "strategy",
        "adamw_sr",
        "adamw_bf16",
        "adamw",
        "adamw_amp",
        "adamw_fp32",
    ]
    assert "step 8/8  validation loss" in lines[1]
    assert "step 8/8  validation loss" in lines[3]
    assert "none yet" in lines[2]
