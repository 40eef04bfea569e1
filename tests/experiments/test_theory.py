# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Every check of the theory in its quick form passes, and goes red when rounding to nearest is swapped in."""

from functools import partial

import pytest
import torch

from nemo_sr.experiments import Lab
from nemo_sr.experiments.catalogue import experiments
from nemo_sr.experiments.frame.command import run
from nemo_sr.experiments.theory import moment_noise, rounding
from nemo_sr.noise import noise16
from nemo_sr.optimizer import AdamWSR
from nemo_sr.rounding import round_nearest, round_stochastic

SLOW = ("toy", "moment_noise", "regularisation", "adam_bound")
NAMES = [
    pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])
    for name, experiment in experiments().items()
    if experiment.page == "theory"
]


@pytest.mark.parametrize("size", [1, 10, 100, 1000, 200000])
def test_runs_side_by_side_are_rounded_as_the_elements_of_a_weight(size):
    x = 1 + torch.rand(size, generator=torch.Generator().manual_seed(0))
    for step in (1, 2, 1023, 100001):
        noise = noise16(3, step, 0, "w", torch.arange(size))
        assert torch.equal(rounding.round_step("stochastic", x, seed=3, step=step), round_stochastic(x, noise).float())


@pytest.mark.parametrize("name", NAMES)
def test_the_checks_pass(name, tmp_path):
    report = experiments()[name].run(Lab(tmp_path, quick=True))
    assert report.failed == []
    assert any(check.required for check in report.checks)


@pytest.mark.parametrize("name", NAMES)
def test_rounding_to_nearest_turns_checks_red(name, tmp_path, monkeypatch):
    monkeypatch.setattr(rounding, "round_stochastic", lambda x, noise: round_nearest(x))
    monkeypatch.setattr(moment_noise, "AdamWSR", partial(to_nearest, AdamWSR))
    report = experiments()[name].run(Lab(tmp_path, quick=True))
    assert report.failed


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_tables_are_made_again_to_the_bit(name, tmp_path):
    files = []
    for folder in ("one", "other"):
        run(experiments()[name], tmp_path / folder, quick=True)
        tables = (tmp_path / folder / name).glob("*.csv")
        files.append({file.name: file.read_bytes() for file in tables if file.name != "timings.csv"})
    assert "checks.csv" in files[0]
    assert files[0] == files[1]


def to_nearest(make, *args, **kwargs):
    return make(*args, **{**kwargs, "exp_avg_sq_rounding": "nearest"})
