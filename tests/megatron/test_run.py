# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""python -m nemo_sr.megatron.run, with programs that ask Megatron-core for Adam."""

import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import megatron.core.optimizer as target
import pytest
import torch
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import OptimizerConfig
from megatron.core.optimizer.optimizer import MegatronOptimizer
from torch.utils.data import DataLoader

import nemo_sr.megatron
from nemo_sr.megatron.run import main
from nemo_sr.megatron.run_cpu import megatron_lm_on_cpu
from nemo_sr.megatron.substitution import adam_replaced, refuse_checkpoint_format

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests/distributed/adam_program.py"


def run_ranks(*words, ranks):
    """Start the runner as its documentation says."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *launcher, "-m", "nemo_sr.megatron.run", *map(str, words)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )


def test_a_program_that_asks_for_adam_trains_with_adamw_sr_to_the_bit(tmp_path):
    output = tmp_path / "found.json"
    options = ("--cpu", "--sr-seed=11", "--sr-exp-avg-rounding=stochastic", "--sr-grad-dtype=bf16")
    result = run_ranks(*options, PROGRAM, output, "--lr", ranks=2)
    assert result.returncode == 0, result.stderr
    found = json.loads(output.read_text())
    assert found.pop("another optimizer").startswith(
        "all parameters must be trained by adamw_sr; the program makes a Float16OptimizerWithFloat16Params of SGD"
    )
    assert "does not support the precision-aware optimizer" in found.pop("precision-aware")
    assert found == {
        "arguments": [str(output), "--lr"],
        "name": "__main__",
        "asked for": "adam",
        "as expected": True,
        "names of plain models": [["0.bias", "0.weight", "1.bias", "1.weight"], ["own.name"]],
        "gradients": "torch.bfloat16",
    }
    said = "takes the place of adam: seed 11, exp_avg stochastic, exp_avg_sq stochastic, gradients BF16"
    assert result.stdout.count(said) == 1


@pytest.fixture
def start(tmp_path, monkeypatch, capsys):
    """Run a program's text in this process, and return its exit status and what it printed."""

    def start(text, *options, arguments=()):
        program = tmp_path / "program.py"
        program.write_text(text)
        monkeypatch.setattr(sys, "argv", sys.argv)
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        with pytest.raises(SystemExit) as end:
            main([*options, str(program), *arguments])
        said = capsys.readouterr()
        code = end.value.code
        return (code, said.out + said.err) if isinstance(code, int) else (1, str(code))

    yield start
    nemo_sr.megatron.uninstall()


def test_a_program_that_made_no_optimizer_fails(start):
    code, said = start("print('trained with something else')", "--cpu")
    assert code == 1
    assert "it ended without having called it, so nothing was trained with adamw_sr" in said


def test_a_program_that_exits_with_0_without_an_optimizer_fails(start):
    code, said = start("import sys; sys.exit(0)", "--cpu")
    assert code == 1
    assert "nothing was trained with adamw_sr" in said


def test_a_programs_own_help_and_exit_status_pass_through(start):
    program = "import argparse, sys; argparse.ArgumentParser(prog='theirs').parse_args(); sys.exit(7)"
    code, said = start(program, "--cpu", arguments=["--help"])
    assert code == 0
    assert "usage: theirs" in said
    assert start(program, "--cpu")[0] == 7


@pytest.mark.parametrize(
    ("options", "arguments", "complaint"),
    [
        (["--cpu", "--sr-seed", "-1"], [], "must be a number from 0 to 2**64 - 1; got '-1'"),
        (["--cpu", "--sr-seed", "x"], [], "must be a number from 0 to 2**64 - 1; got 'x'"),
        (["--cpu", "--sr-exp-avg-rounding", "up"], [], "invalid choice: 'up'"),
        (["--cpu", "--sr-grad-dtype", "fp16"], [], "invalid choice: 'fp16'"),
        (["--cpu", "--optimizer", "adam"], [], "--optimizer"),
        (["--cpu"], ["--sr-seed=3"], "--sr-seed=3 stands behind it. Move it."),
    ],
    ids=["negative seed", "no number", "rounding", "gradients", "a program's option", "misplaced"],
)
def test_wrong_options_are_refused(start, options, arguments, complaint):
    code, said = start("raise AssertionError('the program has run')", *options, arguments=arguments)
    assert code == 2
    assert complaint in said


def test_a_missing_program_is_refused(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["--cpu", "/nowhere/pretrain.py"])
    assert "the program must be a file; /nowhere/pretrain.py is none" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_cpu_must_be_asked_for(start):
    code, said = start("raise AssertionError('the program has run')")
    assert code == 2
    assert "training needs a GPU, and torch sees none. Add --cpu" in said


@pytest.mark.parametrize("name", ["sgd", "muon", "dist_muon"])
def test_other_optimizers_are_refused_by_name(name):
    config = OptimizerConfig(optimizer=name, lr=1e-3, bf16=True)
    with adam_replaced() as made, pytest.raises(ValueError, match=f"the program asks for '{name}'"):
        target.get_megatron_optimizer(config, [])
    assert made == []
    nemo_sr.megatron.uninstall()


def test_the_replacement_leaves_with_its_block():
    owners = (target, MegatronOptimizer, DistributedDataParallel, OptimizerConfig)
    before = [dict(vars(owner)) for owner in owners]
    with adam_replaced(sr_grad_dtype="bf16"):
        assert [dict(vars(owner)) != then for owner, then in zip(owners, before, strict=True)] == [True] * 4
    nemo_sr.megatron.uninstall()
    assert [dict(vars(owner)) for owner in owners] == before


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({}, False),
        ({"ckpt_format": "torch"}, True),
        ({"ckpt_format": "torch", "use_distributed_optimizer": False}, False),
        ({"ckpt_format": "torch", "save": None}, False),
        ({"ckpt_format": "torch", "no_save_optim": True}, False),
        ({"ckpt_format": "torch_dcp"}, True),
        ({"ckpt_format": "torch_dcp", "use_distributed_optimizer": False}, True),
        ({"ckpt_format": "fsdp_dtensor"}, True),
    ],
    ids=str,
)
def test_a_checkpoint_format_that_cannot_be_saved_is_refused_at_the_start(changes, refused):
    args = {"save": "/tmp/x", "no_save_optim": False, "ckpt_format": "torch_dist", "use_distributed_optimizer": True}
    args = Namespace(**{**args, **changes})
    if not refused:
        refuse_checkpoint_format(args)
        return
    with pytest.raises(ValueError, match=rf"--ckpt-format torch_dist.*got --ckpt-format {args.ckpt_format}"):
        refuse_checkpoint_format(args)


def asked_by(module):
    """Ask as code of that module does."""
    found = {"__name__": module, "torch": torch}
    exec("found = torch.cuda.is_available(), torch.cuda.device_count()", found)
    return found["found"]


def test_only_megatron_lms_loop_is_told_of_a_gpu():
    owners = (torch.cuda, DataLoader)
    before, truth = [dict(vars(owner)) for owner in owners], asked_by("__main__")
    with megatron_lm_on_cpu():
        assert asked_by("megatron.training.initialize") == (True, 1)
        assert asked_by("megatron.core.timers") == asked_by("megatron.trainings") == (False, truth[1])
        state = torch.get_rng_state()
        assert list(DataLoader([1, 2])) == [1, 2]
        assert torch.equal(torch.get_rng_state(), state)
    assert [dict(vars(owner)) for owner in owners] == before
    with nemo_sr.megatron.cpu_platform():
        assert asked_by("megatron.training.initialize") == (False, truth[1])
