# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Sweeps of learning rates: their grid, what becomes of a run, what the report says; and whole ones, real."""

import csv
import os
import shutil
import signal
import subprocess
import sys

import pytest
from toy import ROOT, environment, overrides, wait_for

from event_files import write_events
from nemo_sr.sweeping.command import main
from nemo_sr.sweeping.grid import make_grid
from nemo_sr.sweeping.outcome import find_outcome
from nemo_sr.sweeping.report import find_all
from nemo_sr.sweeping.running import write_array
from nemo_sr.training.config import ConfigError, compose_config
from nemo_sr.training.guidance import show_config
from nemo_sr.training.skipping import DivergedError, SkippedSteps


def shared(prefix):
    """What a sweep's runs share: the words of toy runs without their folder, on one process."""
    words = [word for word in overrides(prefix, ROOT, max_steps=20) if "explicit_log_dir" not in word]
    return [*words, "trainer.devices=1"]


def leave(point, losses, *, error="", steps=20):
    """Write what a run leaves behind that came to `steps`; `losses` are its first training and its validation loss."""
    first, val_loss = losses
    write_events(point.folder, {"reduced_train_loss": {5: first, steps: first}, "val_loss": {steps: val_loss}}, time=1)
    (point.folder / "config.yaml").write_text(show_config(point.config), encoding="utf-8")
    if error:
        log = point.folder / "jobs" / "1.0" / "rank_0000.log"
        log.parent.mkdir(parents=True)
        log.write_text(f"step 5\nerror: {error}\n")


def test_a_grid_is_every_strategy_with_every_rate_at_its_own_value(toy_prefix, tmp_path):
    points = make_grid(tmp_path, ["adamw_sr", "adamw"], [3e-2, 1e-2, 1e-2], [*shared(toy_prefix), "optim.eps=1e-7"])
    assert [point.label for point in points] == [
        "adamw_sr at 0.01",
        "adamw_sr at 0.03",
        "adamw at 0.01",
        "adamw at 0.03",
    ]
    assert len({point.folder for point in points}) == 4
    for point in points:
        config = compose_config(list(point.words))  # what its process will see
        assert (config.optim.name, config.optim.lr, config.optim.sr_lr_scale) == (point.strategy, point.lr, 1)
        assert config.exp_manager.explicit_log_dir == str(point.folder)
        assert config.optim.eps == 1e-7
    rates = [point.lr for point in make_grid(tmp_path, ["adamw_sr"], None, shared(toy_prefix))]
    assert rates == [0.00075, 0.0015, 0.003, 0.006, 0.012, 0.024]


@pytest.mark.parametrize(
    ("strategies", "rates", "words", "message"),
    [
        (["adam"], [1e-2], [], "'adam' is none of them"),
        (["adamw"], [0.0], [], "numbers above 0"),
        (["adamw"], [1e-2], ["optim.lr=1"], r"optim\.lr=1 sets one of them"),
        (["adamw"], [1e-2], ["optim=adamw"], "optim=adamw sets one of them"),
        (["adamw"], [1e-2], ["trainer.limit_val_batches=0"], "at 0.01: .*limit_val_batches must be above 0"),
        (["adamw"], [1e-2, 1e-5], [], r"adamw at 1e-05: optim\.sched\.min_lr must be below"),
        (["adamw"], [1e-2], ["exp_manager.create_tensorboard_logger=false"], "reads the losses from TensorBoard"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused_before_it_begins(strategies, rates, words, message, toy_prefix, tmp_path):
    with pytest.raises(ConfigError, match=message):
        make_grid(tmp_path, strategies, rates, [*shared(toy_prefix), *words])


def test_a_sweep_for_a_cluster_needs_neither_its_devices_nor_its_data_here(tmp_path):
    words = ["--config-name=gpt_neo_350m", "model.tensor_model_parallel_size=8"]
    with pytest.raises(ConfigError, match=r"adamw_sr at 0\.001: "):
        make_grid(tmp_path, ["adamw_sr"], [1e-3], words)
    assert make_grid(tmp_path, ["adamw_sr"], [1e-3], words, trains_here=False)
    with pytest.raises(ConfigError, match=r"must be below trainer\.max_steps"):
        make_grid(tmp_path, ["adamw_sr"], [1e-3], [*words, "trainer.max_steps=100"], trains_here=False)


def test_a_runs_folder_says_what_became_of_it(toy_prefix, tmp_path):
    skipped = SkippedSteps(max_in_a_row=1)
    with pytest.raises(DivergedError) as diverged:
        skipped.count(7, updated=False, grad_norm=float("nan"))
    rates = [1e-3 * factor for factor in range(1, 9)]
    points = make_grid(tmp_path, ["adamw_sr"], rates, shared(toy_prefix))
    leave(points[0], (6.0, 4.0))
    leave(points[1], (6.0, 6.5))  # worse than at its start
    leave(points[2], (6.0, float("nan")))
    leave(points[3], (6.0, 5.0), error=str(diverged.value), steps=10)
    leave(points[4], (6.0, 5.0), error="No space left on device", steps=10)
    leave(points[5], (6.0, 5.0), steps=10)
    write_events(points[6].folder, {}, time=1)
    leave(points[7], (6.0, 5.0), error=str(diverged.value))
    next(points[7].folder.glob("events*")).write_bytes(b"")  # before anything was logged
    outcomes = [find_outcome(point) for point in points]
    assert [outcome.status for outcome in outcomes] == [
        "finished",
        "diverged",
        "diverged",
        "diverged",
        "failed",
        "unfinished",
        "not started",
        "diverged",
    ]
    assert [outcome.loss for outcome in outcomes] == [4.0] + [None] * 7
    assert outcomes[4].reason == "No space left on device"


def test_a_report_says_best_rates_stable_ranges_and_where_the_grid_is_too_narrow(toy_prefix, tmp_path, capsys):
    losses = {
        "adamw_sr": {0.001: 5.0, 0.002: 4.45, 0.004: 4.52, 0.008: 7.0},
        "adamw": {0.001: 4.45, 0.002: 4.6, 0.004: 4.5, 0.008: float("inf")},
    }
    words = shared(toy_prefix)
    points = make_grid(tmp_path, list(losses), list(losses["adamw"]), words)
    for point in points:
        leave(point, (6.0, losses[point.strategy][point.lr]))
    options = ["--rates=1e-3,2e-3,4e-3,8e-3", f"--output={tmp_path}", "--report"]
    assert main([*options, *words]) == 0
    printed = capsys.readouterr().out
    assert "| adamw_sr | 0.002 | 4.4500 | 0.002 to 0.004 | 1 | 0 |" in printed
    assert "| adamw | 0.001 | 4.4500 | 0.001 (lowest tried) | 1 | 0 |" in printed
    assert "The best rate of adamw_sr is 2 x that of adamw, its highest stable rate 4 x: with" in printed
    assert "with optim.lr=0.001 the best is optim.sr_lr_scale=2." in printed
    assert "adamw is best at the end of the grid: try lower rates." in printed
    assert "adamw_sr is best at the end" not in printed
    report = (tmp_path / "sweep.md").read_text()
    assert "| adamw | 0.008 | diverged |  |  | 20 |" in report
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader((tmp_path / "sweep.csv").open()))
    assert len(rows) == 8
    assert rows[1]["final_val_loss"] == "4.4500"

    outcomes = [find_outcome(point) for point in points]
    assert [finding.stable for finding in find_all(outcomes, 0.2)] == [(0.002, 0.004), (0.001, 0.004)]
    one = ["--rates=1e-3", "--strategies=adamw", *options[1:], *words]
    assert main([*one, "optim.weight_decay=0.5"]) == 2
    assert "with other values of optim.weight_decay" in capsys.readouterr().err
    shutil.rmtree(points[4].folder)
    assert main(one) == 1  # it has no end
    assert "| adamw | - | - | none | 0 | 1 |" in capsys.readouterr().out


def test_strategies_without_a_finished_run_have_no_range(toy_prefix, tmp_path):
    (finding,) = find_all([find_outcome(point) for point in make_grid(tmp_path, ["adamw"], [1], shared(toy_prefix))], 0)
    assert (finding.best, finding.stable, finding.range_in_words) == (None, None, "none")


def test_an_array_of_batch_jobs_has_the_command_line_of_every_run(toy_prefix, tmp_path):
    points = make_grid(tmp_path / "it's", ["adamw_sr", "adamw"], [1e-2, 3e-2], shared(toy_prefix))
    script = write_array(points, tmp_path / "it's")
    assert "#SBATCH --array=0-3\n" in script.read_text()
    checkout = tmp_path / "checkout"
    (checkout / "slurm").mkdir(parents=True)
    (checkout / "slurm" / "run.slurm").write_text('printf "%s\\n" "$ARRAY_OF_RUNS" "$@"')
    for number, point in enumerate(points):
        variables = {"SLURM_SUBMIT_DIR": str(checkout), "SLURM_ARRAY_TASK_ID": str(number), "PATH": os.environ["PATH"]}
        done = subprocess.run(["bash", script], env=variables, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines() == ["yes", *point.words]
    done = subprocess.run(["bash", script], env={"PATH": os.environ["PATH"]}, capture_output=True, text=True)
    assert done.returncode == 2
    assert "submitted from the checkout" in done.stderr


@pytest.mark.slow
def test_a_sweep_goes_on_after_a_signal_keeps_what_is_finished_and_survives_divergence(toy_prefix, tmp_path):
    command = [sys.executable, str(ROOT / "scripts/sweep_lr.py"), "--rates=1e-2,1e30", f"--output={tmp_path / 'sweep'}"]
    command += ["--strategies=adamw_sr", *shared(toy_prefix), "trainer.max_steps=400", "trainer.max_skipped_steps=3"]
    log = tmp_path / "log"
    first, second = (tmp_path / "sweep/adamw_sr" / name for name in ("lr_0.01", "lr_1e+30"))
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment())
    wait_for(lambda: any("step 5/" in path.read_text() for path in first.glob("jobs/*/rank_0000.log")))
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 1
    assert "The same command goes on." in log.read_text()
    assert len(list((first / "checkpoints").glob("step_*"))) == 1
    assert not second.exists()

    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "adamw_sr at 1e+30: diverged: gradients were not finite; step 4" in done.stdout
    assert "| adamw_sr | 0.01 |" in done.stdout
    newest = max(first.glob("jobs/*/rank_0000.log")).read_text()
    assert "Resuming from" in newest
    again = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert again.returncode == 0
    assert again.stdout.count("(kept)") == 2
    assert again.stdout.partition("\n\n")[2] == done.stdout.partition("\n\n")[2]
