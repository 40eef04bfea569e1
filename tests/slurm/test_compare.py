# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""``slurm/compare.slurm`` on a real SLURM: one configuration, each strategy in a job of its own."""

import subprocess

import pytest
from jobs import variables
from toy import ROOT, overrides

pytestmark = pytest.mark.slow


STRATEGIES = ["adamw_sr", "adamw_bf16", "adamw", "adamw_amp", "adamw_fp32"]


def test_all_strategies_train_and_are_shown(cluster, toy, tmp_path):
    words = [word for word in overrides(toy, tmp_path, max_steps=8) if "explicit_log_dir" not in word]
    options = ("-N2", "--ntasks-per-node=1", "--array=0-4%1", "--job-name=all")
    environment = {**variables(), "RESULTS_DIR": str(tmp_path)}
    script = str(ROOT / "slurm/compare.slurm")

    def table():
        shown = subprocess.run(
            [script, "--table", "all"], env={**cluster.environment, **environment}, capture_output=True
        )
        return shown.stdout.decode().splitlines()

    assert [line.split()[0] for line in table()] == ["run"]
    job = cluster.submit(*options, script, *words, cwd=ROOT, log=tmp_path / "log.%a", **environment)
    for number, name in enumerate(STRATEGIES):
        done = cluster.wait(f"{job}_{number}", 300)
        shown = (tmp_path / f"log.{number}").read_text()
        assert (done["JobState"], done["ExitCode"]) == ("COMPLETED", "0:0"), shown
        assert (tmp_path / f"all/{name}/checkpoints/step_00000008").is_dir()
    sweep = [*options[:2], "--array=4", "--job-name=all"]  # each strategy at each learning rate
    job = cluster.submit(
        *sweep, script, *words, "+experiment=strategies_tiny", cwd=ROOT, log=tmp_path / "point", **environment
    )
    done = cluster.wait(f"{job}_4", 300)
    assert (done["JobState"], done["ExitCode"]) == ("COMPLETED", "0:0"), (tmp_path / "point").read_text()
    print(*table(), sep="\n")
    rows = [line.split() for line in table()[1:]]
    assert [row[0] for row in rows] == sorted([*STRATEGIES, "adamw_sr_paper/lr_0.001/seed_1"])
    assert all(row[1] == "8/8" and float(row[3]) > 1 for row in rows)
