# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""From what SLURM has given a job to the words that every rank gets, and the packages that it needs."""

import subprocess
import sys

import pytest
from toy import ROOT

from nemo_sr.training.config import ConfigError
from nemo_sr.training.preflight import Allocation, decide

GPU = ["--config-name=gpt_neo_6.7b"]


@pytest.mark.parametrize(
    ("words", "allocation", "nodes", "devices"),
    [
        ([], Allocation(1, 0), 1, 2),  # the default configuration's two ranks on the CPU
        ([], Allocation(4, 0, 3), 4, 3),
        ([], Allocation(1, 8), 1, 2),  # GPUs that it does not use
        (GPU, Allocation(4, 8, None, 8), 4, 8),
        (GPU, Allocation(2, 4, 1), 2, 4),  # srun starts the ranks, whatever sbatch would have started
        ([*GPU, "trainer.devices=4", "trainer.num_nodes=2"], Allocation(2, 4), 2, 4),
    ],
)
def test_nodes_and_devices_are_those_of_slurm(words, allocation, nodes, devices):
    decisions = decide(words, allocation, {})
    assert (decisions.config.trainer.num_nodes, decisions.config.trainer.devices) == (nodes, devices)
    assert decisions.overrides == (f"trainer.num_nodes={nodes}", f"trainer.devices={devices}")


@pytest.mark.parametrize(
    ("words", "allocation", "message"),
    [
        (GPU, Allocation(1, 0), r"needs GPUs; SLURM has given the job none. Set SBATCH_GPUS_PER_NODE"),
        ([*GPU, "trainer.devices=8"], Allocation(1, 4), "4 GPUs on each node; it is 8. .*--gpus-per-node=8"),
        ([*GPU, "++trainer.num_nodes=1"], Allocation(4, 8), "4 nodes; it is 1. .*--nodes=1"),
        (GPU, Allocation(1, 8, None, 1), "must have a CPU of its own; .* 1 on each node for 8 ranks. Set SBATCH_CPUS"),
        (GPU, Allocation(1, 8, 4), "--ntasks-per-node must be the number of GPUs of a node.*4 and 8"),
        (["optim.lrr=1"], Allocation(1, 0), "Near it: optim.lr"),
    ],
)
def test_what_does_not_agree_is_refused(words, allocation, message):
    with pytest.raises(ConfigError, match=message):
        decide(words, allocation, {})


def test_paths_of_the_configurations_lead_to_data_and_results():
    places = {"data": "/big/data", "runs": "/big/results"}
    moved = decide(GPU, Allocation(1, 8), places).config
    assert moved.exp_manager.explicit_log_dir == "/big/results/gpt_neo_6.7b"
    assert moved.data.data_prefix == "/big/data/wikipedia/hfbpe_gpt_training_data_text_document"
    own = ["data.data_prefix=[0.5,data/a b,0.5,/x/data/c]", "exp_manager.explicit_log_dir=/y/runs"]
    kept = decide([*GPU, *own], Allocation(1, 8), places).config
    assert kept.exp_manager.explicit_log_dir == "/y/runs"
    assert list(kept.data.data_prefix) == [0.5, "/big/data/a b", 0.5, "/x/data/c"]


def test_numbers_come_from_the_environment():
    assert Allocation.from_environment({"JOB_NODES": "3", "JOB_GPUS_PER_NODE": "", "JOB_TASKS_PER_NODE": ""}) == (
        Allocation(3, 0)
    )
    assert Allocation.from_environment({"JOB_CPUS_PER_NODE": "96"}).cpus_per_node == 96
    with pytest.raises(ConfigError, match="JOB_GPUS_PER_NODE must be a number; it is h100"):
        Allocation.from_environment({"JOB_GPUS_PER_NODE": "h100"})


def test_packages_that_are_missing_are_named():
    done = subprocess.run(
        [sys.executable, "-I", "-S", ROOT / "scripts/preflight.py"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr.startswith(
        f"error: Training needs packages that {sys.executable} has not: torch, megatron.core,"
    )
    assert len(done.stderr.splitlines()) == 1
