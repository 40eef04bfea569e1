# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""How a run ends that cannot go on, and what a terminal shows."""

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import psutil
import pytest
from toy import ROOT, environment, find_ranks, overrides, pretrain, wait_for


def test_gradients_that_stay_infinite_end_the_run_with_a_message_and_what_the_last_good_step_left(toy_prefix, tmp_path):
    run = tmp_path / "run"
    # A folder of one's own comes first, in the check and in the run.
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "cpu.yaml").write_text("{accelerator: cpu, devices: 1}\n")
    (tmp_path / "mine.yaml").write_text("defaults: [gpt_tiny_cpu, _self_]\noptim: {lr: 1e30}\n")
    own = [f"--config-dir={tmp_path}", "--config-name=mine"]
    words = ["trainer.max_skipped_steps=3", "trainer.log_every_n_steps=1"]
    leftover = run / "checkpoints" / "partial_step_00000007"
    leftover.mkdir(parents=True)
    done = pretrain(*own, *overrides(toy_prefix, run, max_steps=20), *words)
    assert done.returncode == 1, done.stdout + done.stderr
    message = "error: The norm of the gradients must be finite; it was not in the last 3 steps"
    assert done.stderr.splitlines()[-1].startswith(message)
    assert "Traceback" not in done.stderr
    skipped = [line for line in done.stdout.splitlines() if "skipped" in line]
    where = r"\(rank 0: embedding\.word_embeddings\.weight and \d+ more\)"
    line = rf"step {{}}: skipped, since the norm of its gradients is nan {where}"
    assert len(skipped) == 2
    assert all(re.fullmatch(line.format(step), text) for step, text in zip((2, 3), skipped, strict=True)), skipped
    saved = run / "checkpoints" / "step_00000004"
    assert sorted((run / "checkpoints").iterdir()) == [leftover, saved]  # what a killed run left is left alone
    state = json.loads((saved / "run_state.json").read_text())
    assert state["skipped_steps"] == {"in_a_row": 0, "total": 3}
    spikes = [line for line in done.stdout.splitlines() if "SPIKE" in line]  # one, of several steps
    assert [line[:43] for line in spikes] == ["step 2: LOSS SPIKE, nan after a median of 6"]
    assert state["loss_spikes"]["total"] == 1
    assert f"Left alone: {leftover} is unfinished" in done.stdout

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("skipped_steps")] == [(1, 0.0), (2, 1.0), (3, 2.0)]


@pytest.mark.slow
def test_a_flipped_bit_ends_the_run_with_the_name_of_the_weight_and_the_rank(toy_prefix, tmp_path):
    run = tmp_path / "run"
    words = ["model.tensor_model_parallel_size=2", "trainer.check_replicas_every_n_steps=2"]
    saving = ["exp_manager.checkpoint_callback_params.every_n_train_steps=2"]
    command = [sys.executable, str(Path(__file__).with_name("drifting.py")), *overrides(toy_prefix, run, max_steps=20)]
    done = subprocess.run([*command, *words, *saving], env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stdout + done.stderr
    # The fourth step has already carried it into the gradients of other weights that both ranks hold.
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("error: step 4: Replicas must hold")]
    assert "decoder.final_layernorm.weight (rank 1 from rank 0)" in said
    assert "Traceback" not in done.stderr
    # It went well at step 2, and what had drifted at step 4 was not saved.
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step_00000002"]


@pytest.mark.skipif(sys.platform != "linux", reason="finds the ranks by their environment under /proc")
def test_a_terminal_shows_a_bar_and_a_dead_rank_ends_the_run(toy_prefix, tmp_path):
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 160, 0, 0))
    command = [sys.executable, str(ROOT / "scripts/pretrain_gpt.py")]
    words = overrides(toy_prefix, tmp_path / "run", max_steps=2000)
    process = subprocess.Popen([*command, *words], env=environment(), stdout=slave, stderr=slave)
    os.close(slave)
    shown = bytearray()
    threading.Thread(target=_read, args=(master, shown), daemon=True).start()
    try:
        bar = rb"gpt_tiny_cpu: +\d+%\|.*\| [3-9]/2000 \[.*loss \d\.\d+  val_loss -  lr \S+  grad_norm \S+  tok"
        wait_for(lambda: re.search(bar, shown) or process.poll() is not None)
        assert process.poll() is None, shown.decode()
        ranks = find_ranks(process)
        ranks[1].send_signal(signal.SIGKILL)
        killed_at = time.monotonic()
        assert process.wait(60) == 128 + signal.SIGKILL, shown.decode()
        assert time.monotonic() - killed_at < 30
        wait_for(lambda: not ranks[0].is_running() or ranks[0].status() == psutil.STATUS_ZOMBIE, timeout=10)
    finally:
        process.kill()
    assert b"step 5/2000" not in shown  # the bar takes the place of the lines
    assert list((tmp_path / "run" / "checkpoints").glob("step_*")) == []


def _read(master, shown):
    with contextlib.suppress(OSError):  # everything that held the terminal is gone
        while True:
            shown.extend(os.read(master, 4096))
