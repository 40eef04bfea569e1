# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Runs that are asked to stop after their first checkpoint: by torchrun's SIGTERM to all processes, and by Ctrl-C."""

import os
import signal
import subprocess
import sys

import pytest
from toy import ROOT, environment, overrides, pretrain, wait_for


def checkpoints(run):
    return sorted(path.name for path in (run / "checkpoints").glob("*"))


@pytest.mark.parametrize("torchrun", [True, False], ids=["SIGTERM under torchrun, async", "SIGINT to python"])
def test_a_run_that_is_stopped_saves_and_goes_on(toy_prefix, tmp_path, torchrun):
    run = tmp_path / "run"
    words = [
        *overrides(toy_prefix, run, max_steps=2000),
        "exp_manager.checkpoint_callback_params.every_n_train_steps=5",
        f"exp_manager.checkpoint_callback_params.async_save={torchrun}",
    ]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--local_addr=127.0.0.1", "--nproc_per_node=2"]
    command = [sys.executable, *(launcher if torchrun else []), str(ROOT / "scripts/pretrain_gpt.py"), *words]
    with (tmp_path / "output").open("w") as output:
        process = subprocess.Popen(command, env=environment(), stdout=output, stderr=output, start_new_session=True)
    try:
        wait_for(lambda: "step_00000005" in checkpoints(run) or process.poll() is not None)
        if torchrun:
            process.terminate()
        else:
            os.killpg(process.pid, signal.SIGINT)
        status = process.wait(120)
    finally:
        process.kill()
    shown = (tmp_path / "output").read_text()
    assert "stopped; the same command resumes" in shown, shown
    assert (status == 0) is not torchrun, shown  # torchrun calls every signal a failure, and shows where it was
    assert torchrun or "Traceback" not in shown, shown
    newest = checkpoints(run)[-1]
    assert newest.startswith("step_")
    step = int(newest.removeprefix("step_"))
    again = pretrain(*words, f"trainer.stop_after_steps={step + 1}")
    assert again.returncode == 0, again.stdout + again.stderr
    assert f"Resuming from {run}/checkpoints/{newest}" in again.stdout
