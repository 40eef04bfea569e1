# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The page and the figure of runs: what they say, that they need no network, and the errors of the command."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest
import yaml

from event_files import write_events
from nemo_sr.plotting import Curve
from nemo_sr.plotting.command import main
from nemo_sr.plotting.page import thin
from nemo_sr.plotting.panels import SECTIONS
from nemo_sr.plotting.runs import find_differences, read_run, read_runs
from nemo_sr.training.config import compose_config
from nemo_sr.training.guidance import show_config
from nemo_sr.training.metrics import METRICS


def make_run(folder, *words, steps=30, curves=None):
    """Write what a run of 30 steps under the tests' configuration leaves behind after `steps`."""
    folder.mkdir(parents=True)
    config = compose_config(["trainer.max_steps=30", "optim.sched.warmup_steps=1", *words])
    (folder / "config.yaml").write_text(show_config(config), encoding="utf-8")
    curves = curves or {
        "reduced_train_loss": {step: 9 - step / 10 for step in range(1, steps + 1)},
        "val_loss": {step: 8 - step / 10 for step in range(10, steps + 1, 10)},
        "lr": {step: 1e-3 / step for step in range(1, steps + 1)},
        "tokens_per_sec": dict.fromkeys(range(1, steps + 1), 1000.0),
        "peak_memory_mib": {1: 100.0, steps: 250.0},
        "sr/share_lost": {10: 0.25},
        "sr/update_in_ulps": {10: 0.5},
        "sr/update_in_ulps/mlp": {10: 0.75},
        "sr/something_new": {10: 1.0},
    }
    write_events(folder, curves, time=100)
    return folder


class References(HTMLParser):
    """Collects whatever makes a browser ask for something."""

    def __init__(self):
        super().__init__()
        self.found = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.found += [
            (tag, name, value) for name, value in attrs if name in ("src", "href", "srcset", "action", "data")
        ]

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def page(folder):
    make_run(folder / "a", "optim.sr_lr_scale=2")
    make_run(folder / "b<!--<script>", "optim.name=adamw", "model.tensor_model_parallel_size=2", steps=20)
    assert main([str(folder / "a"), str(folder / "b<!--<script>"), "--smooth=0.5"]) == 0
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    return (folder / "curves.html").read_text(encoding="utf-8")


def read_data(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


def test_the_page_asks_nothing_of_a_network(page):
    references = References()
    references.feed(page)
    assert references.found == [("link", "href", "data:,")]
    urls = set(re.findall(r"https?://[^\s\"'`]+|@import|url\((?!#)", page))
    assert urls == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert "default-src 'none'" in page


def test_the_page_holds_the_curves(page):
    data = read_data(page)
    assert data["runs"] == ["a", "b<!--<script>"]
    assert data["smoothing"] == 0.5
    panels = {panel["name"]: panel for panel in data["panels"]}
    a, b = panels["val_loss"]["curves"]
    assert (a["run"], a["x"], a["y"]) == (0, [10, 20, 30], [7.0, 6.0, 5.0])
    assert (b["run"], b["x"], b["y"]) == (1, [10, 20], [7.0, 6.0])
    assert list(panels)[:4] == ["reduced_train_loss", "val_loss", "lr", "sr/share_lost"]
    for name in ("sr/update_in_ulps/mlp", "sr/something_new", "tokens_per_sec"):
        assert len(panels[name]["curves"]) == 2
    assert panels["sr/update_in_ulps/mlp"]["title"] == "Mean |update|: mlp"
    for panel in data["panels"]:
        assert f'<figure id="{panel["id"]}">' in page


def test_a_browser_draws_every_curve_of_the_page(page, folder, tmp_path):
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("needs Chromium (Debian: apt-get install chromium)")
    options = (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=2000",
        f"--user-data-dir={tmp_path}",
    )
    address = (folder / "curves.html").as_uri()
    done = subprocess.run([browser, *options, "--dump-dom", address], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    panels = read_data(page)["panels"]
    assert done.stdout.count("<svg") == len(panels)
    drawn = re.findall(r'<path class="(curve[^"]*)"[^>]* d="M[^"]+"', done.stdout)
    assert drawn.count("curve") == sum(len(panel["curves"]) for panel in panels)
    assert drawn.count("curve raw") == sum(len(panel["curves"]) for panel in panels if panel["smoothed"])
    assert done.stdout.count('class="chip"') == 2


def test_the_page_says_what_the_runs_are(page):
    text = References()
    text.feed(page)
    rows = re.findall(r"<tr><th scope=\"row\".*?</tr>", page)
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in rows]
    assert cells == [
        ["adamw_sr", "0.006", "DP2", "finished, 30 steps", "5.0000", "5.0000 (step 30)", "1,000", "250 MiB"],
        ["adamw", "0.003", "TP2", "unfinished: step 20 of 30", "6.0000", "6.0000 (step 20)", "1,000", "250 MiB"],
    ]
    assert "b<!--<script> is unfinished: it is at step 20 of 30." in text.text
    keys = re.findall(r'<td class="key">(.*?)</td>', page)
    assert keys == ["model.tensor_model_parallel_size", "optim.name", "optim.sr_lr_scale"]


def test_every_metric_that_a_panel_knows_is_one(page):
    known = {panel.name for panels in SECTIONS.values() for panel in panels}
    assert known <= METRICS.keys()


def test_a_run_without_a_configuration_or_with_half_of_one_is_shown_all_the_same(tmp_path, capsys):
    write_events(tmp_path / "old", {"val_loss": {5: 1.0}}, time=100)
    hparams = {"cfg": {"num_layers": 2, "optim": {"name": "adamw_sr", "lr": 0.5}, "target": "x"}}
    (tmp_path / "old" / "hparams.yaml").write_text(yaml.safe_dump(hparams))
    run = read_run(tmp_path / "old")
    assert (run.strategy, run.learning_rate, run.layout, run.progress) == ("adamw_sr", 0.5, None, "step 5")
    (tmp_path / "old" / "hparams.yaml").unlink()
    assert main([str(tmp_path / "old")]) == 0
    assert "holds no config.yaml" in capsys.readouterr().err


def test_a_start_under_slurm_says_what_it_ran_with(tmp_path):
    run = make_run(tmp_path / "run", "optim.lr=0.25")
    (run / "jobs" / "7.0").mkdir(parents=True)
    (run / "config.yaml").rename(run / "jobs" / "7.0" / "config.yaml")
    assert read_run(run).learning_rate == 0.25


def test_checkpoints_count_as_progress_and_a_diverged_loss_is_not_the_best(tmp_path):
    run = make_run(tmp_path / "run", curves={"val_loss": {10: float("inf"), 20: 3.0, 25: float("nan")}})
    (run / "checkpoints" / "step_00000030").mkdir(parents=True)
    (run / "checkpoints" / "partial_step_00000040").mkdir()
    read = read_run(run)
    assert read.is_finished
    assert read.best_val_loss == (3.0, 20)
    assert np.isnan(read.final_val_loss)
    assert main([str(run)]) == 0
    curves = read_data((run / "curves.html").read_text())["panels"][0]["curves"]
    assert curves[0]["y"] == [None, 3.0, None]


def test_runs_are_told_apart_by_folders_above_them(tmp_path):
    folders = [make_run(tmp_path / name) for name in ("x/run", "y/run")]
    runs = read_runs(folders)
    assert [run.name for run in runs] == ["x/run", "y/run"]
    assert find_differences(runs) == {}


def test_what_cannot_be_plotted_is_refused(tmp_path, capsys):
    run = make_run(tmp_path / "runs" / "run")
    empty = tmp_path / "runs" / "empty"
    write_events(empty, {}, time=100)
    (tmp_path / "nothing").mkdir()

    def refusal(*words):
        assert main([str(word) for word in words]) == 2
        lines = capsys.readouterr().err.splitlines()
        return lines[-1]

    assert f"{tmp_path / 'nothing'} holds none" in refusal(tmp_path / "nothing")
    assert "is no folder" in refusal(tmp_path / "missing")
    assert f"These are runs: {empty} {run}." in refusal(tmp_path / "runs")
    assert "empty has not" in refusal(empty)
    assert "is given twice" in refusal(run, run)
    assert "--smooth must be at least 0 and less than 1; it is 1." in refusal(run, "--smooth=1")
    assert "Add .html" in refusal(run, "--output=page")
    assert not list(tmp_path.rglob("*.png"))
    assert main([str(run), str(empty)]) == 0  # the other run has curves
    assert "empty has logged nothing yet" in capsys.readouterr().err
    assert (tmp_path / "runs" / "curves.html").is_file()


def test_a_long_curve_keeps_its_spikes_and_gaps():
    values = np.sin(np.arange(100_000) / 1e4)
    values[54_321], values[77_777] = 50.0, np.nan
    thinned = thin(Curve(np.arange(100_000), values), 500)
    assert len(thinned.steps) <= 500
    assert thinned.values[thinned.steps == 54_321] == [50.0]
    assert np.isnan(thinned.values[thinned.steps == 77_777]).all()
    assert (thinned.steps[0], thinned.steps[-1]) == (0, 99_999)
    assert (np.diff(thinned.steps) > 0).all()
