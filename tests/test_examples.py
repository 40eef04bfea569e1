# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The single-file example, on a small sample corpus, as a reader of the README runs it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SMALL = ["--steps=40", "--width=32", "--layers=2", "--heads=2", "--length=32", "--batch=8"]


def run(*words, ranks=1):
    launcher = [sys.executable]
    if ranks > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
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
