# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What a person types, on a real SLURM that counts GPUs: the site's file reaches sbatch; submit.sh checks first."""

import re
import shutil
import subprocess

import pytest
from jobs import SCRIPT, variables
from toy import ROOT, overrides

SITE = {
    "SBATCH_ACCOUNT": "physics",
    "SBATCH_PARTITION": "urgent",
    "SBATCH_GPUS_PER_NODE": "2",
    "SBATCH_EXCLUSIVE": "exclusive",
    "SBATCH_MEM_PER_NODE": "0",
    "SBATCH_TIMELIMIT": "00:30:00",
}


@pytest.fixture
def checkout(tmp_path):
    """A checkout of its own, with a site's file that is filled in."""
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT / "slurm", checkout / "slurm")
    for name in ("scripts", "conf", "nemo_sr"):
        (checkout / name).symlink_to(ROOT / name)
    text = (checkout / "slurm/env.sh").read_text()
    for name, value in SITE.items():
        text, count = re.subn(rf'(?m)^site {name}( +)""', rf'site {name}\1"{value}"', text)
        assert count == 1, name
    (checkout / "slurm/env.sh").write_text(text)
    return checkout


def test_what_the_site_says_reaches_sbatch_and_the_job(cluster, checkout, tmp_path):
    done = subprocess.run(
        [
            "sh",
            "-c",
            '. slurm/env.sh && sbatch --parsable -N2 --output="$LOG" slurm/run.slurm "$@"',
            "sh",
            "--config-name=gpt_neo_125m",
            "trainer.devices=4",
        ],
        cwd=checkout,
        env={**cluster.environment, **variables(), "LOG": str(tmp_path / "log")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    job = cluster.wait(done.stdout.strip())
    assert (job["Account"], job["Partition"], job["TimeLimit"]) == ("physics", "urgent", "00:30:00")
    assert (job["TresPerNode"], job["OverSubscribe"], job["MinMemoryNode"]) == ("gres:gpu:2", "NO", "0")
    assert (job["NumNodes"], job["NumCPUs"], job["ExitCode"]) == ("2", "4", "2:0")  # exclusive: both CPUs of each node
    assert (
        (tmp_path / "log")
        .read_text()
        .startswith(
            "error: trainer.devices must be what SLURM has given the job, 2 GPUs on each node; it is 4. "
            "Leave trainer.devices out, or submit with --gpus-per-node=4."
        )
    )


@pytest.fixture
def submit(cluster, toy, tmp_path):
    """Calls slurm/submit.sh with a job that waits."""

    def call(*options, more=()):
        words = [*overrides(toy, tmp_path / "run", max_steps=8), *more]
        command = [ROOT / "slurm/submit.sh", "--hold", "--parsable", *options, SCRIPT, *words]
        env = {**cluster.environment, **variables()}
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)

    return call


def test_a_training_that_passes_its_checks_is_submitted(cluster, submit):
    done = submit("--account=physics", "-p", "urgent", "-N", "2", "--ntasks-per-node=1")
    assert done.returncode == 0, done.stderr
    job = cluster.describe(done.stdout.strip())
    cluster.call("scancel", done.stdout.strip())
    assert (job["JobState"], job["Account"], job["Partition"]) == ("PENDING", "physics", "urgent")
    assert (job["NumNodes"], job["Command"]) == ("2-2", str(SCRIPT))
    assert " --nodes=2 --ntasks=2 --ntasks-per-node=1 " in done.stderr


def test_one_that_does_not_is_not(cluster, submit):
    done = submit("-N2", more=["trainer.num_nodes=3"])
    assert (done.returncode, done.stdout) == (2, "")
    assert "trainer.num_nodes must be what SLURM has given the job, 2 nodes; it is 3." in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: A training that is submitted must pass its checks;")
