# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Saves on two real ranks that both write: at once and in the background, and everything that can stop one."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from distributed.gloo_ranks import run_ranks

RANKS = (0, 1)
KINDS = ("sync", "async")


@pytest.fixture(scope="module")
def small_filesystem(tmp_path_factory):
    """Yield the folder of a file system of 64 KiB, or a text that says why there is none."""
    folder = tmp_path_factory.mktemp("small")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if done.returncode:
        yield f"mount said: {done.stderr.strip()}"
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture(scope="module")
def found(tmp_path_factory, small_filesystem):
    folder = tmp_path_factory.mktemp("saves")
    small = str(small_filesystem / "checkpoints") if isinstance(small_filesystem, Path) else ""
    script = Path(__file__).with_name("checkpoint_rank.py")
    run_ranks(script, 2, str(folder / "found.json"), str(folder), small, directory=folder, timeout=280)
    return json.loads((folder / "found.json").read_text())


def test_a_save_in_the_background_holds_the_step_at_which_it_began(found):
    for rank in RANKS:
        ways = found[rank]["both ways"]
        assert ways["loaded"] == {"sync": ways["saved"], "async": ways["saved"]}
        assert ways["later"] != ways["saved"]
        assert ways["unpublished"] == {"partial_step_00000002": "partial"}


def test_the_newest_and_the_best_are_kept(found):
    kept = dict.fromkeys(["step_00000003", "step_00000005", "step_00000006"], "complete")
    assert found[0]["keeping"] == kept


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_cannot_grow_leaves_the_checkpoint_before(found, kind):
    for rank in RANKS:
        case = found[rank]["file too large"][kind]
        name, message, seconds = case["error"]
        assert name == "SaveError"
        assert "The newest complete checkpoint is" in message
        assert "step_00000001" in message
        # Of the two files that rank 1 writes at once, the one that came first.
        assert rank or re.search(r"rank 1: Worker failure: __1_[01]\.distcp: \[Errno 27\] File too large", message)
        assert seconds < 60
        assert case["between"] == {"step_00000001": "complete", "partial_step_00000002": "partial"}
        assert case["after"] == {"step_00000001": "complete", "step_00000002": "complete"}


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("killed writer", "rank 1: Worker failure: the process that wrote __1_0.distcp was killed (exit code -9)"),
        ("killed waiter", "rank 1: Worker failure: the process that writes the files ended without a report"),
    ],
)
def test_a_process_that_is_killed_is_an_error_on_all_ranks(found, case, reason):
    for rank in RANKS:
        name, message, seconds = found[rank][case]
        assert name == "RuntimeError"
        assert rank or reason in message
        assert seconds < 60


@pytest.mark.parametrize("kind", ["object", "common"])
def test_what_would_run_code_is_refused_on_all_ranks(found, kind):
    for rank in RANKS:
        case = found[rank]["hostile"][kind]
        name, message, _ = case["error"]
        assert name == "UnsafeError"
        assert "must hold tensors, numbers and text alone" in message
        assert not case["was run"]
        assert case["is run by Megatron"]  # else nothing would be shown


def test_a_save_that_does_not_fit_is_not_begun(found, small_filesystem):
    if not isinstance(small_filesystem, Path):
        pytest.skip(f"a small file system cannot be mounted here: {small_filesystem}")
    for rank in RANKS:
        name, message, _ = found[rank]["no room"]
        assert name == "SaveError"
        assert "MB are free in" in message
        assert "The newest complete checkpoint is none" in message
    assert list((small_filesystem / "checkpoints" / "partial_step_00000001").iterdir()) == []
