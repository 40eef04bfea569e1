# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The launcher reports failures and leaves no process behind."""

import os
import time

import pytest
from gloo_ranks import run_ranks

PROGRAM = """
import os, subprocess, sys, time
rank = int(os.environ["RANK"])
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open(f"{sys.argv[1]}/pids{rank}", "w").write(f"{os.getpid()} {child.pid}")
print("hello from", rank, "of", os.environ["WORLD_SIZE"], flush=True)
if sys.argv[2] == "fail" and rank == 1:
    sys.exit(3)
if sys.argv[2] != "end":
    time.sleep(60)
"""


def run(tmp_path, what, timeout):
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    run_ranks(script, 2, str(tmp_path), what, directory=tmp_path, timeout=timeout)


def assert_gone(tmp_path):
    pids = [int(pid) for rank in (0, 1) for pid in (tmp_path / f"pids{rank}").read_text().split()]
    assert len(pids) == 4
    deadline = time.monotonic() + 5
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline, pids
        time.sleep(0.05)


def is_running(pid):
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_success_leaves_no_child(tmp_path):
    run(tmp_path, "end", 60)
    assert_gone(tmp_path)
    assert "hello from 1 of 2" in (tmp_path / "rank1.txt").read_text()


def test_a_failing_rank_ends_the_others(tmp_path):
    began = time.monotonic()
    with pytest.raises(AssertionError, match=r"rank 1 \(exit status 3\) ---\nhello from 1"):
        run(tmp_path, "fail", 60)
    assert time.monotonic() - began < 30
    assert_gone(tmp_path)


def test_a_timeout_ends_all(tmp_path):
    with pytest.raises(AssertionError, match="limit 3 s"):
        run(tmp_path, "hang", 3)
    assert_gone(tmp_path)
