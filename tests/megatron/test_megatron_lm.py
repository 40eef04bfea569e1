# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Megatron-LM's own pretrain_gpt.py, where the environment variable MEGATRON_LM names a checkout of it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHECKOUT = os.environ.get("MEGATRON_LM")
FLAGS = """--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64
--micro-batch-size 2 --global-batch-size 8 --train-iters 6 --lr 1e-3 --min-lr 1e-4 --lr-decay-style cosine --bf16
--mock-data --tokenizer-type NullTokenizer --vocab-size 256 --transformer-impl local --distributed-backend gloo
--no-gradient-accumulation-fusion --no-masked-softmax-fusion --no-persist-layer-norm --no-rope-fusion --log-interval 1
--eval-interval 1000 --eval-iters 1 --num-workers 0 --optimizer adam"""
DISTRIBUTED = "--use-distributed-optimizer"

pytestmark = pytest.mark.skipif(
    not CHECKOUT, reason="the environment variable MEGATRON_LM names no checkout of NVIDIA/Megatron-LM (core_v0.16.1)"
)


def start(*flags):
    """Run it on two ranks as the documentation says."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    runner = ["-m", "nemo_sr.megatron.run", "--cpu", "--sr-seed=3"]
    python_path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [*launcher, *runner, str(Path(CHECKOUT, "pretrain_gpt.py")), *FLAGS.split(), *flags],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "PYTHONPATH": python_path},
        timeout=300,
        check=False,
    )


def train(*flags):
    """Return the loss and the gradients' norm that it logged, by iteration."""
    result = start(*flags)
    assert result.returncode == 0, result.stderr[-5000:]
    assert "adamw_sr takes the place of adam: seed 3, exp_avg nearest, exp_avg_sq stochastic" in result.stdout
    line = r"iteration +(\d+)/ .* lm loss: (\S+) .* grad norm: (\S+) "
    return {int(i): (float(loss), float(norm)) for i, loss, norm in re.findall(line, result.stdout)}


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param([DISTRIBUTED], id="DP 2"),
        pytest.param([DISTRIBUTED, "--tensor-model-parallel-size=2"], id="TP 2", marks=pytest.mark.slow),
        pytest.param([DISTRIBUTED, "--pipeline-model-parallel-size=2"], id="PP 2", marks=pytest.mark.slow),
        pytest.param([DISTRIBUTED, "--dist-ckpt-optim-fully-reshardable"], id="resharding", marks=pytest.mark.slow),
        pytest.param([], id="every rank steps all", marks=pytest.mark.slow),
        pytest.param(["--ckpt-format=torch"], id="the torch format", marks=pytest.mark.slow),
    ],
)
def test_it_trains_and_goes_on_after_a_resume_as_if_it_had_not_stopped(flags, tmp_path):
    whole = train(*flags)
    assert whole[6][0] < whole[3][0] < whole[1][0]
    stopped = train(*flags, f"--save={tmp_path}", "--save-interval=3", "--exit-interval=3")
    assert stopped == {i: whole[i] for i in (1, 2, 3)}
    resumed = train(*flags, f"--load={tmp_path}")
    # For the second iteration after a start Megatron-LM logs the mean loss of both.
    mean = (whole[4][0] + whole[5][0]) / 2
    assert resumed == {4: whole[4], 5: (pytest.approx(mean, abs=2e-6), whole[5][1]), 6: whole[6]}


def test_the_torch_format_is_refused_before_training_with_the_distributed_optimizer(tmp_path):
    result = start(DISTRIBUTED, "--ckpt-format=torch", f"--save={tmp_path}", "--save-interval=3")
    assert result.returncode != 0
    assert "got --ckpt-format torch --use-distributed-optimizer. Use --ckpt-format torch_dist" in result.stderr
    assert "lm loss" not in result.stdout
    assert not list(tmp_path.iterdir())
