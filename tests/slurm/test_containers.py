# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The command lines for pyxis, Apptainer and Docker, which cannot run here: stub programs record them."""

import os
import subprocess

import pytest
from jobs import SCRIPT
from toy import ROOT

# Records how it was called, and plays what slurm/run.slurm waits for: the preflight's decisions.
STUB = """#!/bin/bash
printf '%s' "${0##*/}" >>"$RECORD"
printf ' %s' "$@" >>"$RECORD"
echo >>"$RECORD"
case " $* " in
*" scripts/preflight.py "*)
    printf '%s\\n' ranks_per_node=8 run_folder="$RESULTS_DIR/x" last_step=10 override=trainer.devices=8
    ;;
*" scripts/pretrain_gpt.py "*) mkdir -p "$RESULTS_DIR/x/checkpoints/step_00000010" ;;
" import --output "*) touch "$3" ;;
" pull "*) touch "$2" ;;
" show hostnames "*) seq 100000 ;;
esac
"""
IMAGE = "nvcr.io/nvidia/nemo:26.02"
TRAINING = "scripts/pretrain_gpt.py --config-name=gpt_neo_6.7b optim.name=adamw_sr trainer.devices=8"
IN_IMAGE = f"sh {ROOT}/slurm/task.sh python"


@pytest.fixture
def run(tmp_path):
    for name in ("srun", "scontrol", "squeue", "enroot", "apptainer", "docker"):
        (tmp_path / "bin" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(STUB)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "results/x/jobs/77.0").mkdir(parents=True)

    def call(container, image=IMAGE):
        env = {
            "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "RECORD": str(tmp_path / "record"),
            "SLURM_SUBMIT_DIR": str(ROOT),
            "SLURM_JOB_ID": "77",
            "SLURM_JOB_NUM_NODES": "2",
            "SLURM_GPUS_ON_NODE": "8",
            "SLURM_JOB_NODELIST": "n[1-2]",
            "CONTAINER": container,
            "IMAGE": image,
            "IMAGE_DIR": str(tmp_path / "images"),
            "DATA_DIR": str(tmp_path / "data"),
            "RESULTS_DIR": str(tmp_path / "results"),
            "MOUNTS": "/scratch:/scratch",
        }
        words = ["--config-name=gpt_neo_6.7b", "optim.name=adamw_sr"]
        done = subprocess.run(["bash", SCRIPT, *words], env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        return (tmp_path / "record").read_text().splitlines()

    return call


def srun(tmp_path):
    logs = f"{tmp_path}/results/x/jobs/77.0/rank_%4t.log"
    return (
        "srun --export=ALL --nodes=2 --ntasks=16 --ntasks-per-node=8 --kill-on-bad-exit=1 --overcommit --cpu-bind=none "
        f"--output={logs} --error={logs} "
    )


def test_pyxis(run, tmp_path):
    record = run("pyxis")
    image = f"{tmp_path}/images/nvcr.io_nvidia_nemo_26.02.sqsh"
    imported = next(line for line in record if line.startswith("enroot"))
    assert imported.startswith(f"enroot import --output {tmp_path}/images/partial.")
    assert imported.endswith(".sqsh docker://nvcr.io#nvidia/nemo:26.02")
    mounts = f"{ROOT}:{ROOT},{tmp_path}/data:{tmp_path}/data,{tmp_path}/results:{tmp_path}/results,/scratch:/scratch"
    options = (
        f"--container-image={image} --container-mounts={mounts} --container-workdir={ROOT} --no-container-mount-home "
    )
    assert f"{srun(tmp_path)}{options}{IN_IMAGE} {TRAINING}" in record
    assert [line for line in run("pyxis")[len(record) :] if line.startswith("enroot")] == []  # it is there


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("nvcr.io/nvidia/nemo@sha256:ab12", "docker://nvcr.io#nvidia/nemo:sha256:ab12"),
        ("nvcr.io/nvidia/nemo:26.02@sha256:ab12", "docker://nvcr.io#nvidia/nemo:sha256:ab12"),
        ("host:5000/nemo:1", "docker://host:5000#nemo:1"),
        ("nemo:1", "docker://nemo:1"),
    ],
)
def test_names_for_enroot(run, image, name):
    assert next(line for line in run("pyxis", image) if line.startswith("enroot")).endswith(f".sqsh {name}")


def test_apptainer(run, tmp_path):
    record = run("apptainer")
    image = f"{tmp_path}/images/nvcr.io_nvidia_nemo_26.02.sif"
    pulled = next(line for line in record if line.startswith("apptainer pull"))
    assert pulled.endswith(f".sif docker://{IMAGE}")
    mounts = f"{ROOT}:{ROOT},{tmp_path}/data:{tmp_path}/data,{tmp_path}/results:{tmp_path}/results,/scratch:/scratch"
    inside = f"apptainer exec --bind {mounts} --pwd {ROOT} --nv {image} "
    assert f"{srun(tmp_path)}{inside}{IN_IMAGE} {TRAINING}" in record


def test_docker(run, tmp_path):
    command = next(line for line in run("docker") if "pretrain_gpt" in line)
    user = f"{os.getuid()}:{os.getgid()}"
    begin = (
        f"{srun(tmp_path)}docker run --rm --init --network=host --ipc=host --ulimit memlock=-1 --ulimit stack=67108864 "
        f"--user {user} --workdir {ROOT} --gpus all --volume {ROOT}:{ROOT} --volume {tmp_path}/data:{tmp_path}/data "
        f"--volume {tmp_path}/results:{tmp_path}/results --volume /scratch:/scratch --env MASTER_ADDR "
    )
    assert command.startswith(begin)
    assert command.endswith(f" {IMAGE} {IN_IMAGE} {TRAINING}")
    for name in (
        "SLURM_PROCID",
        "SLURM_LOCALID",
        "SLURM_JOB_ID",
        "SLURM_STEP_ID",
        "NCCL_DEBUG",
        "CUDA_VISIBLE_DEVICES",
    ):
        assert f" --env {name} " in command
