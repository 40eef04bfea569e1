# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The CSV file over several starts, names that nobody listed, spikes of the loss, and how fast a run is said to be."""

import contextlib
import math
import random
import re
from types import SimpleNamespace

import pytest
from logs import read_csv
from toy import ROOT, overrides

from nemo_sr.training.config import ConfigError, compose_config
from nemo_sr.training.csv_logger import CSVLogger
from nemo_sr.training.loggers import check_loggers
from nemo_sr.training.metrics import LAYER_GROUPS, METRICS, log_metrics
from nemo_sr.training.progress import describe_seconds
from nemo_sr.training.spikes import DEVIATIONS, FEWEST, WINDOW, LossSpikes
from nemo_sr.training.throughput import Throughput
from nemo_sr.training.validate import check_profiles


def test_a_csv_file_goes_on_where_the_run_does(tmp_path):
    first = CSVLogger(tmp_path, 0)
    for step in (5, 10, 15):
        first.log_metrics({"lr": step / 10, "sr/share_lost": 0.5}, step=step)
    with (tmp_path / "csv" / "metrics.csv").open("a") as file:
        file.write("20,0.1")  # killed while it wrote
    assert list(CSVLogger(tmp_path, 10)._path.read_text().splitlines()[0].split(","))[:2] == [
        "step",
        "reduced_train_loss",
    ]
    CSVLogger(tmp_path, 10).log_metrics({"lr": 9.0}, step=15)
    assert read_csv(tmp_path) == {"lr": {5: 0.5, 10: 1.0, 15: 9.0}, "sr/share_lost": {5: 0.5, 10: 0.5}}


def test_a_metric_that_is_not_listed_is_refused():
    with pytest.raises(ValueError, match=r"\['learning_rate'\] are not"):
        log_metrics(SimpleNamespace(is_global_zero=True, loggers=[]), {"learning_rate": 1.0}, 1)


def test_the_page_has_every_metric():
    page = (ROOT / "docs/telemetry.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([^`]+)`", "\n".join(re.findall(r"^\| (.*?) \|", page, re.MULTILINE))))
    assert [name for name in METRICS if name.count("/") < 2 and name not in named] == []
    assert all(f"`{group}`" in page for group in LAYER_GROUPS)
    for constant in (WINDOW, DEVIATIONS, FEWEST):
        assert f"{constant:g}" in page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["model.torch_profile.start_step=5", "model.torch_profile.end_step=4"],
            "end_step must be at least .* 4 and 5",
        ),
        (["model.torch_profile.ranks=[0,2]"], r"ranks of the run, 0 to 1; they are \[0, 2\]"),
        (["model.nsys_profile.enabled=true"], "must be false without trainer.accelerator=gpu"),
        (["model.torch_profile.enabled=false", "model.torch_profile.ranks=[7]"], None),
    ],
)
def test_profiles_that_cannot_be_are_refused(words, message, toy_prefix, tmp_path):
    config = compose_config(
        [*overrides(toy_prefix, tmp_path / "run", max_steps=20), "model.torch_profile.enabled=true", *words]
    )
    with pytest.raises(ConfigError, match=message) if message else contextlib.nullcontext():
        check_profiles(config)


def test_weights_and_biases_needs_a_project(toy_prefix, tmp_path):
    words = [*overrides(toy_prefix, tmp_path / "run", max_steps=20), "exp_manager.create_wandb_logger=true"]
    with pytest.raises(ConfigError, match="project must be given"):
        check_loggers(compose_config(words).exp_manager)
    check_loggers(compose_config([*words, "exp_manager.wandb_logger_kwargs.project=p"]).exp_manager)


def losses(seed=0):
    """A run that falls from 10 to 3 with noise of 0.05, and what is odd about it by its step."""
    generator = random.Random(seed)
    values = [3 + 7 * math.exp(-step / 40) + generator.gauss(0, 0.05) for step in range(400)]
    return values, {150: values[150] + 1.0, 151: values[151] + 2.0, 300: math.nan, 350: values[350] + 0.12}


def test_spikes_are_found_once_each_and_noise_is_none():
    values, odd = losses()
    spikes = LossSpikes()
    assert [line for step, loss in enumerate(values) if (line := spikes.count(step, loss))] == []
    spikes = LossSpikes()
    lines = {step: spikes.count(step, odd.get(step, loss)) for step, loss in enumerate(values)}
    assert [step for step, line in lines.items() if line] == [150, 300]  # 0.12 is 2.4 standard deviations
    assert lines[150].startswith(f"step 150: LOSS SPIKE, {odd[150]:.4f} after a median of 3.")
    assert spikes.total == 2


def test_a_resumed_run_finds_the_same_spikes():
    values, odd = losses()
    whole, first, second = LossSpikes(), LossSpikes(), LossSpikes()
    expected = [whole.count(step, odd.get(step, loss)) for step, loss in enumerate(values)]
    found = []
    for step, loss in enumerate(values):
        if step == 151:  # within a spike
            second.load_state_dict(first.state_dict())
        found.append((first if step < 151 else second).count(step, odd.get(step, loss)))
    assert found == expected
    assert second.state_dict() == whole.state_dict()


@pytest.mark.parametrize(("above", "is_spike"), [(-1e-6, False), (1e-6, True)])
def test_a_loss_is_compared_with_enough_steps_and_by_the_stated_deviations(above, is_spike):
    spikes = LossSpikes()
    regular = [1.0, 1.1, 1.2, 1.3] * (FEWEST // 4)
    for step, loss in enumerate(regular[:-1]):
        assert spikes.count(step, loss) is None
    assert LossSpikes().count(0, 50.0) is None  # too early
    spikes.count(FEWEST - 1, regular[-1])
    # By hand: the median is 1.15, and the losses are 0.05 or 0.15 from it, half of them each.
    limit = 1.15 + DEVIATIONS * 1.4826 * 0.1
    assert (spikes.count(FEWEST, limit + above) is not None) == is_spike


def test_the_rates_are_per_step_and_rank(toy_prefix, tmp_path):
    words = overrides(toy_prefix, tmp_path / "run", max_steps=20)
    one = Throughput.of_run(compose_config(words), 512)
    per_layer = 4 * 64 * 64 + 2 * 64 * 256 + 2 * 64 * 64  # weights, and scores and values of 64 keys
    assert one.flops == 6 * 16 * 64 * (2 * per_layer + 64 * 512) / 2
    assert one.measure(0.5) == {
        "train_step_timing in s": 0.5,
        "tokens_per_sec": 16 * 64 / 0.5,
        "tflops_per_sec_per_gpu": one.flops / 0.5 / 1e12,
    }
    known = Throughput.of_run(compose_config([*words, "trainer.peak_tflops_per_gpu=2"]), 512)
    assert known.measure(0.5)["mfu"] == one.flops / 0.5 / 2e12


def test_durations():
    assert [describe_seconds(seconds) for seconds in (0, 59.1, 3600, 90061)] == [
        "0:00:00",
        "0:01:00",
        "1:00:00",
        "1d 1:01:01",
    ]
