# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""A rank that is stopped, or whose training does not go on, ends the run in bounded time and is named."""

import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from toy import ROOT, find_ranks, overrides, run_python, start_pretrain, wait_for

from nemo_sr.training.judge import Beat, Judge

TIMEOUT = 6


def beat(sign, progress=0, *, busy="", waits=False, **collectives):
    return Beat(sign, progress, 3, busy, waits, "a.py:1 (f)", "here", collectives)


def judge(rounds, timeout=10.0, interval=2.0):
    judge = Judge(timeout)
    for number, beats in enumerate(rounds):
        verdict = judge.judge(beats, number * interval)
        if verdict is not None:
            return number * interval, verdict
    return None


def test_a_rank_without_a_sign_is_named():
    rounds = [[beat(i, i), beat(min(i, 4), min(i, 4))] for i in range(30)]
    when, verdict = judge(rounds)
    assert verdict.startswith("rank 1 on here, step 3, at a.py:1 (f): not heard of for 10 s")
    assert when == 8 + 12  # the last sign came at 8 s; the first round after 10 s more


def test_the_rank_that_does_not_wait_is_the_one_at_fault():
    rounds = [[beat(i, 5, waits=True), beat(i, 5, waits=False), beat(i, 5, waits=True)] for i in range(30)]
    when, verdict = judge(rounds)
    assert verdict == "rank 1 on here, step 3, at a.py:1 (f): no progress for 10 s"
    assert when == 12


def test_of_ranks_that_look_alike_the_one_behind_is_at_fault():
    rounds = [[beat(i, 5), beat(i, 4), beat(i, 5)] for i in range(30)]
    assert judge(rounds)[1].startswith("rank 1 on")
    rounds = [[beat(i, 5, waits=True), beat(i, 5, waits=True)] for i in range(30)]
    assert judge(rounds)[1].startswith("rank 0 on here, step 3, at a.py:1 (f); rank 1 on")


def test_a_rank_that_waits_is_not_taken_for_the_one_it_waits_for():
    # Rank 1 was seen to go on one round later than rank 0, which has been waiting since.
    rounds = [[beat(i, 5, waits=True), beat(i, min(i, 1))] for i in range(30)]
    when, verdict = judge(rounds)
    assert verdict.startswith("rank 1 on")
    assert when == 2 + 12
    # It goes on all the time and never comes.
    rounds = [[beat(i, 5, waits=True), beat(i, i)] for i in range(30)]
    when, verdict = judge(rounds)
    assert verdict.startswith("rank 1 on")
    assert when == 2 * 10 + 2
    # One that only waits too: the run ends all the same.
    rounds = [[beat(i, 5, waits=True), beat(i, i, waits=True)] for i in range(30)]
    assert judge(rounds)[1].startswith("rank 0 on")


def test_the_rank_that_has_not_entered_the_collective_is_the_one_at_fault():
    # On a GPU the main threads may be anywhere. Rank 3 waits for 2 in one group, and 2 for 1 in another.
    counts = [{"a": 7}, {"b": 3}, {"a": 6, "b": 4}, {"a": 7}]
    for late in range(4):  # whoever was seen to go on last
        rounds = [[beat(i, min(i, int(rank == late)), **counts[rank]) for rank in range(4)] for i in range(30)]
        assert judge(rounds)[1].startswith("rank 1 on here, step 3, at a.py:1 (f): no progress")


def test_a_busy_rank_and_a_process_that_was_itself_stopped_are_let_off():
    assert judge([[beat(i, 5, busy="saving")] for i in range(30)]) is None
    judged = Judge(10.0)
    assert judged.judge([beat(1, 1)], 0.0) is None
    assert judged.judge([beat(1, 1)], 100.0) is None  # nobody could be heard between
    assert judged.judge([beat(1, 1)], 104.0) is None
    assert judged.judge([beat(1, 1)], 108.0) is None
    assert judged.judge([beat(1, 1)], 112.0) is not None


@pytest.mark.skipif(sys.platform != "linux", reason="finds the ranks by their environment under /proc")
@pytest.mark.parametrize("stopped", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_stopped_rank_ends_the_run(toy_prefix, tmp_path, stopped):
    process = start_pretrain(
        *overrides(toy_prefix, tmp_path / "run", max_steps=5000), f"trainer.heartbeat_timeout={TIMEOUT}"
    )
    lines = []
    reader = threading.Thread(target=lambda: lines.extend(iter(process.stdout.readline, "")), daemon=True)
    reader.start()
    try:
        wait_for(lambda: any("step 5/" in line for line in lines) or process.poll() is not None)
        assert process.poll() is None, "".join(lines)
        ranks = find_ranks(process)
        ranks[stopped].send_signal(signal.SIGSTOP)
        stopped_at = time.monotonic()
        assert process.wait(60) == 1, "".join(lines)
        assert time.monotonic() - stopped_at < TIMEOUT + 20
        reader.join(10)
        assert not any(rank.is_running() and rank.status() != psutil.STATUS_ZOMBIE for rank in ranks.values())
    finally:
        process.kill()
    (message,) = [line for line in lines if line.startswith("error: Every rank must go on")]
    assert f"rank {stopped}" in message
    assert f"not heard of for {TIMEOUT} s" in message


def test_a_rank_that_hangs_ends_the_run(toy_prefix, tmp_path):
    words = [*overrides(toy_prefix, tmp_path / "run", max_steps=50), f"trainer.heartbeat_timeout={TIMEOUT}"]
    done = run_python(Path(__file__).with_name("hanging.py"), *words, torchrun=2)
    assert done.returncode != 0
    (message,) = [line for line in done.stderr.splitlines() if line.startswith("error: Every rank must go on")]
    assert "rank 1 on" in message
    assert "step 2, at hanging.py:" in message  # the last beat came before step 3 was counted
    assert f"no progress for {TIMEOUT} s" in message
    assert "rank 1 was at:" in done.stderr
    assert str(ROOT / "tests/training/hanging.py") in done.stderr
