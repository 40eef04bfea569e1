# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Jobs that SLURM or a person interrupts, on a real SLURM: each ends as if it had not been, to the bit."""

import contextlib
import re

import psutil
import pytest
from jobs import submit
from local_cluster import NODES
from toy import overrides, read_tensors, wait_for

pytestmark = pytest.mark.slow

STEPS = 160
WAIT = 400


def words(toy, run, *more):
    every = "exp_manager.checkpoint_callback_params.every_n_train_steps=40"
    return [*overrides(toy, run, max_steps=STEPS), every, *more]


@pytest.fixture(scope="module")
def weights(cluster, toy, tmp_path_factory):
    """All tensors that the run ends with if nothing interrupts it."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    job = submit(cluster, folder / "log", *words(toy, folder / "run"))
    assert cluster.wait(job, WAIT)["JobState"] == "COMPLETED", (folder / "log").read_text()
    return read_tensors(folder / f"run/checkpoints/step_{STEPS:08d}")


def assert_same(run, weights):
    found = read_tensors(run / f"checkpoints/step_{STEPS:08d}")
    assert found.keys() == weights.keys()
    assert [name for name in weights if not found[name].equal(weights[name])] == []


def wait_for_step(cluster, run, step, log):
    wait_for(lambda: (run / f"checkpoints/step_{step:08d}").exists(), WAIT)
    print(log.read_text(), cluster.call("squeue"), sep="\n")


def ranks_of(job):
    """Return the processes that train for a job, by rank."""
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, KeyError):
            if process.environ()["SLURM_JOB_ID"] == job and "scripts/pretrain_gpt.py" in process.cmdline():
                found[int(process.environ()["SLURM_PROCID"])] = process
    return found


def finish(cluster, job, log, restarts=1):
    done = cluster.wait(job, WAIT)
    shown = log.read_text()
    print(shown, done, sep="\n")
    assert (done["JobState"], done["ExitCode"], done["Restarts"]) == ("COMPLETED", "0:0", str(restarts)), shown
    assert f"Step {STEPS} of {STEPS}: finished." in shown
    return shown


def start_run(cluster, toy, tmp_path):
    """Submit a run and wait until it is under way; return its job, its folder and its log."""
    run, log = tmp_path / "run", tmp_path / "log"
    job = submit(cluster, log, *words(toy, run))
    wait_for_step(cluster, run, 40, log)
    return job, run, log


def test_a_signal_saves_and_requeues(cluster, toy, tmp_path, weights):
    job, run, log = start_run(cluster, toy, tmp_path)
    cluster.call("scancel", "--signal=USR1", job)
    shown = finish(cluster, job, log)
    assert "; requeued." in shown
    assert f"Resuming from {run}/checkpoints/step_" in shown
    assert_same(run, weights)


def test_scontrol_requeue(cluster, toy, tmp_path, weights):
    job, run, log = start_run(cluster, toy, tmp_path)
    cluster.call("scontrol", "requeue", job)
    shown = finish(cluster, job, log)
    assert f"Resuming from {run}/checkpoints/step_" in shown
    assert_same(run, weights)


def test_a_node_that_fails(cluster, toy, tmp_path, weights):
    job, run, log = start_run(cluster, toy, tmp_path)
    # Its daemon dies, its rank hangs and comes back when the run has been started anew.
    cluster.kill_node(NODES[1])
    lost = ranks_of(job)[1]
    lost.suspend()
    wait_for(lambda: cluster.describe(job)["Restarts"] == "1", WAIT)
    lost.resume()
    cluster.start_node(NODES[1])
    shown = finish(cluster, job, log)
    assert f"Resuming from {run}/checkpoints/step_" in shown
    assert_same(run, weights)


def test_the_time_limit(cluster, toy, tmp_path, weights):
    run, log = tmp_path / "run", tmp_path / "log"
    # SLURM looks at limits once a minute or so, and counts in minutes.
    job = submit(
        cluster, log, *words(toy, run, "trainer.log_every_n_steps=1"), options=("--time=1", "--signal=B:USR1@50")
    )
    wait_for(lambda: "Stopped at step" in log.read_text() if log.exists() else False, WAIT)
    wait_for(lambda: cluster.describe(job)["JobState"] == "PENDING", WAIT)
    cluster.call("scontrol", "update", f"JobId={job}", "TimeLimit=30")
    shown = finish(cluster, job, log)
    assert "by SIGUSR1; requeued." in shown
    assert_same(run, weights)


@pytest.mark.parametrize("options", [["--batch"], []], ids=["to_the_script", "to_its_checks"])
def test_a_signal_while_the_checks_run(cluster, toy, tmp_path, weights, options):
    run, log = tmp_path / "run", tmp_path / "log"
    job = submit(cluster, log, *words(toy, run))
    wait_for(lambda: f"{job}.0" in cluster.call("squeue", "--steps", "--noheader"), WAIT)
    cluster.call("scancel", "--signal=USR1", *options, job)
    shown = finish(cluster, job, log)
    assert f" of {STEPS} by SIGUSR1; requeued." in shown
    assert_same(run, weights)


def test_preemption(cluster, toy, tmp_path, weights):
    job, run, log = start_run(cluster, toy, tmp_path)
    urgent = cluster.submit(
        "--partition=urgent", "-N2", "--exclusive", "--wrap=true", cwd=tmp_path, log=tmp_path / "urgent"
    )
    cluster.wait(urgent, WAIT)
    assert cluster.describe(job)["JobState"] in ("PENDING", "RUNNING")
    shown = finish(cluster, job, log)
    assert "; requeued." in shown
    assert f"Resuming from {run}/checkpoints/step_" in shown
    assert_same(run, weights)


def test_scancel_is_final(cluster, toy, tmp_path):
    job, _, log = start_run(cluster, toy, tmp_path)
    cluster.call("scancel", job)
    done = cluster.wait(job, WAIT)
    print(log.read_text())
    assert (done["JobState"], done["Restarts"]) == ("CANCELLED", "0")
    assert "requeued" not in log.read_text()


def assert_refused(cluster, job, toy, run, log):
    second = cluster.wait(submit(cluster, log, *words(toy, run)), WAIT)
    assert second["ExitCode"] == "2:0", log.read_text()
    assert f"A run must have one writer; job {job} (start 0) writes into {run}" in log.read_text()


def test_a_run_that_fails_twice_at_one_step_stops(cluster, toy, tmp_path):
    run, log = tmp_path / "run", tmp_path / "log"
    every = "exp_manager.checkpoint_callback_params.every_n_train_steps=2000"
    job = submit(cluster, log, *overrides(toy, run, max_steps=2000), every)
    wait_for(lambda: log.exists() and "step 5/2000" in log.read_text(), WAIT)
    assert_refused(cluster, job, toy, run, tmp_path / "second")
    ranks_of(job)[1].kill()
    wait_for(lambda: "after the checkpoint of step 0 of 2000; requeued." in log.read_text(), WAIT)
    shown = log.read_text()
    (message,) = re.findall("(?m)^error: Every rank must be there until the end; .*", shown)
    assert "; rank 1 on " in message
    assert message.endswith("The same command begins anew, for there is no checkpoint yet.")
    assert "Traceback" not in shown
    wait_for(lambda: log.read_text().count("step 5/2000") == 2, WAIT)
    ranks_of(job)[1].kill()
    done = cluster.wait(job, WAIT)
    shown = log.read_text()
    print(shown)
    assert done["JobState"] == "FAILED", shown
    assert "twice it has failed after that of step" in shown


def test_a_stop_file_ends_the_run_until_it_is_removed(cluster, toy, tmp_path, weights):
    job, run, log = start_run(cluster, toy, tmp_path)
    (run / "stop").touch()
    done = cluster.wait(job, WAIT)
    assert (done["JobState"], done["ExitCode"], done["Restarts"]) == ("COMPLETED", "0:0", "0")
    assert f" of {STEPS} by {run}/stop. To go on: remove it" in log.read_text()
    cluster.wait(submit(cluster, tmp_path / "refused", *words(toy, run)), WAIT)
    assert "says that this run is to stop" in (tmp_path / "refused").read_text()
    (run / "stop").unlink()
    finish(cluster, submit(cluster, tmp_path / "again", *words(toy, run)), tmp_path / "again", restarts=0)
    assert_same(run, weights)


def test_the_jobs_of_an_array_go_on_after_one_another(cluster, toy, tmp_path, weights):
    run = tmp_path / "run"
    options = ("--array=1-3%1", "--no-requeue")
    job = submit(cluster, tmp_path / "log.%a", *words(toy, run), options=options)
    wait_for_step(cluster, run, 40, tmp_path / "log.1")
    with contextlib.suppress(AssertionError):  # it signals, and calls that a failure, for a job of an array
        cluster.call("scancel", "--signal=USR1", f"{job}_1")
    for number in (1, 2, 3):
        assert cluster.wait(f"{job}_{number}", WAIT)["ExitCode"] == "0:0"
    assert "; the next job of the array goes on." in (tmp_path / "log.1").read_text()
    assert f"Step {STEPS} of {STEPS}: finished." in (tmp_path / "log.2").read_text()
    assert "This run is finished" in (tmp_path / "log.3").read_text()
    assert_same(run, weights)
