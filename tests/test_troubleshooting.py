# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The messages on the page of troubles are the code's; those that a test can bring about are there word for word."""

import ast
import re
import warnings
from types import SimpleNamespace

import pytest
import torch

from documented import ROOT, read_blocks
from nemo_sr import AdamWSR
from nemo_sr.data.indexed import check_prefix
from nemo_sr.megatron.refusals import refuse_unsupported
from nemo_sr.training.config import compose_config
from nemo_sr.training.launch import Launch, check_launch
from nemo_sr.training.skipping import SkippedSteps
from nemo_sr.training.validate import check_layout

FIELD = ".*?"
# Of a pattern this many letters must be the code's own, so that none made of fields alone matches everything.
FEWEST_LETTERS = 24


def words(text):
    return " ".join(text.split())


MESSAGES = {
    str(block): words(block.text) for block in read_blocks(ROOT / "docs/troubleshooting.md") if block.mark == "message"
}


def parts_of(node):
    """Return a string of Python's as its own parts and FIELDs."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        return [part.value if isinstance(part, ast.Constant) else FIELD for part in node.values]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [*(parts_of(node.left) or [FIELD]), *(parts_of(node.right) or [FIELD])]
    return []


def parts_of_shell(text):
    """Return what a shell script or the Makefile says, in double quotes, as its own parts and FIELDs."""
    for found in re.finditer(r'(?:echo|fail|and) "((?:[^"\\]|\\.)*)"', text, re.DOTALL):
        string = found[1].replace("\\\n", "")
        yield re.split(rf"({re.escape(FIELD)})", re.sub(r"\$\{[^}]*\}|\$\([^)]*\)|\$\w+|%s", FIELD, string))


@pytest.fixture(scope="module")
def patterns():
    """Every message that the code could print, as a regular expression."""
    strings = []
    for file in (ROOT / "nemo_sr").rglob("*.py"):
        strings += map(parts_of, ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    for file in (ROOT / "Makefile", *(ROOT / "slurm").iterdir()):
        strings += parts_of_shell(file.read_text(encoding="utf-8"))
    return [
        re.compile("(error: )?" + "".join(FIELD if part == FIELD else re.escape(part) for part in parts), re.DOTALL)
        for parts in strings
        if sum(len(part) for part in parts if part != FIELD) >= FEWEST_LETTERS
    ]


@pytest.mark.parametrize(("where", "message"), MESSAGES.items(), ids=list(MESSAGES))
def test_a_message_is_one_of_the_codes(patterns, where, message):
    assert any(pattern.fullmatch(message) for pattern in patterns), f"no line of the code says: {message}"


def linear(dtype=torch.bfloat16):
    return torch.nn.Linear(2, 2).to(dtype)


def load_under_another_name():
    saved, present = AdamWSR([("w", linear().weight)]), AdamWSR([("v", linear().weight)])
    (param,) = saved.param_groups[0]["params"]
    param.grad = torch.ones_like(param)
    saved.step()
    present.load_state_dict(saved.state_dict())


def put_masters_in():
    optimizer = AdamWSR([("w", linear().weight)])
    optimizer.param_groups[0]["params"] = [torch.nn.Parameter(torch.zeros(8))]
    optimizer.step()


def skip_ten_steps():
    skipped = SkippedSteps(10)
    found = "rank 3: decoder.layers.5.mlp.linear_fc1.weight and 40 more"
    for step in range(1225, 1235):
        skipped.count(step, updated=False, grad_norm=float("nan"), found=found)


def train_in_fp16():
    config = SimpleNamespace(fp16=True, bf16=False)
    refuse_unsupported(config, SimpleNamespace(), SimpleNamespace(), rows=["fp16"])


TROUBLES = {
    "FP32 parameters": lambda: AdamWSR(linear(torch.float32).named_parameters()),
    "one name twice": lambda: AdamWSR([("w", linear().weight), ("w", linear().weight)]),
    "another name on loading": load_under_another_name,
    "masters": put_masters_in,
    "a second moment that stalls": lambda: AdamWSR([("w", linear().weight)], exp_avg_sq_rounding="nearest"),
    "decay that is lost": lambda: AdamWSR([("w", linear().weight)], lr=1e-6, weight_decay=1e-2),
    "a key that is none": lambda: compose_config(["optim.exp_avg_roundings=nearest"]),
    "a batch that does not divide": lambda: check_layout(
        compose_config(["--config-name=gpt_tiny_cpu", "model.global_batch_size=7"])
    ),
    "steps that are not finite": skip_ten_steps,
    "FP16": train_in_fp16,
    "a prefix without files": lambda: check_prefix("data/wikipedia/wiki_text_document"),
    "half as many processes": lambda: check_launch(
        Launch("torchrun", rank=0, world_size=4, local_world_size=4), SimpleNamespace(devices=8, num_nodes=1)
    ),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_trouble_gives_the_message_on_the_page(trouble):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises((ValueError, TypeError, RuntimeError, OSError, UserWarning)) as error:
            TROUBLES[trouble]()
    assert words(str(error.value)) in MESSAGES.values()
