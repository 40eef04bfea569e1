# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The examples, on a small sample corpus, as a reader of the README runs them."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

ROOT = Path(__file__).parent.parent
SMALL = ["--steps=40", "--width=32", "--layers=2", "--heads=2", "--length=32", "--batch=8"]


def run(*words, ranks=1):
    launcher = [sys.executable]
    if ranks > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    return subprocess.run(
        [*launcher, *map(str, words)], capture_output=True, text=True, env=environment, timeout=300, check=False
    )


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    dump = folder / "dump.xml.bz2"
    made = run(ROOT / "scripts/make_sample_corpus.py", "--output", dump, "--size-mb", 0.3)
    assert made.returncode == 0, made.stderr
    made = run(
        ROOT / "scripts/preprocess_wikipedia.py",
        *("--input", dump, "--output", folder / "sample", "--train-tokenizer", 512, "--workers", 1),
    )
    assert made.returncode == 0, made.stderr
    return folder / "sample_text_document"


def losses(result):
    assert result.returncode == 0, result.stderr
    return [float(loss) for loss in re.findall(r"loss (\S+)", result.stdout)]


@pytest.mark.parametrize(
    "switches",
    [[], ["--no-stoc-rounding"], ["--dtype", "float32"], ["--dtype", "float32", "--mixed-precision"]],
    ids=lambda switches: " ".join(switches) or "bf16 and stochastic rounding",
)
def test_every_strategy_trains(prefix, switches):
    first, last = losses(run(ROOT / "examples/train_gpt2.py", "--data", prefix, *SMALL, *switches))
    assert last < first < 6.3  # ln 512 = 6.24


def test_replicas_stay_bit_equal(prefix):
    result = run(ROOT / "examples/train_gpt2.py", "--data", prefix, *SMALL, "--check-replicas=10", ranks=2)
    assert losses(result)[-1] < 6.0
    assert "the replicas of 2 ranks hold the same bits" in result.stdout


def test_bad_input_is_named(prefix, tmp_path):
    missing = run(ROOT / "examples/train_gpt2.py", "--data", tmp_path / "nothing")
    assert missing.returncode != 0
    assert "lacks one. Run preprocess_wikipedia.py" in missing.stderr
    (tmp_path / "x.idx").write_bytes(b"not an index")
    (tmp_path / "x.bin").write_bytes(b"")
    wrong = run(ROOT / "examples/train_gpt2.py", "--data", tmp_path / "x")
    assert wrong.returncode != 0
    assert "is none" in wrong.stderr
    clash = run(ROOT / "examples/train_gpt2.py", "--data", prefix, "--mixed-precision")
    assert clash.returncode == 2
    assert "add --dtype float32" in clash.stderr


FEW = ["--steps=20", "--save-every=10", "--width=32", "--layers=2", "--heads=2", "--length=32", "--batch=4"]
SAME = "the same bits in all weights and moments"


def read_checkpoint(folder):
    """Return a DCP checkpoint's entries by path, put together from its shards."""
    file = folder.parent / "whole.pt"
    dcp_to_torch_save(folder, file)

    def entries(value, path):
        if not isinstance(value, dict | list):
            return {path: value}
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {key: leaf for name, item in items for key, leaf in entries(item, (*path, name)).items()}

    return entries(torch.load(file, weights_only=True), ())


@pytest.mark.slow
def test_fsdp2_resumes_in_shards_and_in_replicas(prefix, tmp_path):
    command = [ROOT / "examples/train_fsdp2.py", "--data", prefix, *FEW, "--checkpoints"]
    result = run(*command, tmp_path / "shards", "--check", ranks=2)
    assert losses(result)[-1] < 6.2
    assert f"resumed at step 10: {SAME}" in result.stdout
    shutil.copytree(tmp_path / "shards/step_000010", tmp_path / "replicas/step_000010")
    result = run(*command, tmp_path / "replicas", "--replicas=2", ranks=2)
    assert losses(result)[-1] < 6.2
    assert "resumed from" in result.stdout
    assert "the 2 replicas hold the same bits" in result.stdout
    # One rank's gradient and another's have one sum, in whatever order; from there on the layout changes nothing.
    shards, replicas = (read_checkpoint(tmp_path / layout / "step_000020") for layout in ("shards", "replicas"))
    assert shards.keys() == replicas.keys()
    assert sum(isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16 for value in shards.values()) == 84
    for path, value in shards.items():
        same = torch.equal(value, replicas[path]) if isinstance(value, torch.Tensor) else value == replicas[path]
        assert same, path


@pytest.mark.slow
def test_hugging_faces_trainer_resumes_and_keeps_replicas_equal(prefix, tmp_path):
    pytest.importorskip("accelerate", reason="transformers' Trainer needs accelerate, which is not installed")
    command = [ROOT / "examples/train_hf_trainer.py", "--data", prefix, *FEW, "--checkpoints", tmp_path / "checkpoints"]
    result = run(*command, "--check", ranks=2)
    assert result.returncode == 0, result.stderr
    assert "the replicas of 2 ranks hold the same bits" in result.stdout
    assert f"resumed from checkpoint-10: {SAME}" in result.stdout
    state = torch.load(tmp_path / "checkpoints/checkpoint-20/optimizer.pt", weights_only=True)
    assert {str(moment["exp_avg"].dtype) for moment in state["state"].values()} == {"torch.bfloat16"}
    assert state["param_groups"][0]["param_names"][0] == "transformer.wte.weight"
