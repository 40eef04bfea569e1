# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""A sweep of learning rates as an array of jobs on a real SLURM, and the report on what they leave."""

import subprocess
import sys

import pytest
from jobs import variables
from toy import ROOT, environment, overrides

pytestmark = pytest.mark.slow


def test_an_array_trains_a_sweep_whose_report_tells_divergence_from_success(cluster, toy, tmp_path):
    words = [word for word in overrides(toy, tmp_path, max_steps=20) if "explicit_log_dir" not in word]
    sweep = [sys.executable, str(ROOT / "scripts/sweep_lr.py"), "--rates=1e-2,1e30", "--strategies=adamw_sr"]
    sweep += [f"--output={tmp_path / 'sweep'}", "trainer.max_skipped_steps=3", *words]
    written = subprocess.run([*sweep, "--slurm"], capture_output=True, text=True, env=environment(), check=False)
    assert written.returncode == 0, written.stderr
    options = ("-N2", "--ntasks-per-node=1", "--no-requeue")
    script = str(tmp_path / "sweep" / "array.slurm")
    job = cluster.submit(*options, script, cwd=ROOT, log=tmp_path / "log.%a", **variables())
    states = [cluster.wait(f"{job}_{number}", 300)["JobState"] for number in (0, 1)]
    shown = [(tmp_path / f"log.{number}").read_text() for number in (0, 1)]
    assert states[0] == "COMPLETED", shown[0]
    assert states[1] != "COMPLETED"
    report = subprocess.run([*sweep, "--report"], capture_output=True, text=True, env=environment(), check=False)
    assert report.returncode == 0, report.stdout + report.stderr
    assert "| adamw_sr | 0.01 | " in report.stdout
    assert "| adamw_sr | 1e+30 | diverged |" in (tmp_path / "sweep" / "sweep.md").read_text()
