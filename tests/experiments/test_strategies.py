# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The comparison of strategies: its sweep, the keys of its runs, its statistics."""

import pytest

from nemo_sr.experiments.strategies.statistics import interval, stable_range, t_quantile
from nemo_sr.experiments.strategies.sweep import STRATEGIES, Point, key_of, read_sweep
from nemo_sr.training.config import ConfigError, compose_config

TINY = ["--config-name=gpt_tiny_cpu", "+experiment=strategies_tiny"]


def test_a_sweep_is_every_combination_and_names_each_run():
    points = read_sweep("strategies_tiny")
    assert len({point.name for point in points}) == len(points) == 3 * 6 * len(STRATEGIES)
    assert points[0].words == ["model.seed=1", "optim.lr=0.001", "optim=adamw_fp32"]
    assert points[0].name == "adamw_fp32/lr_0.001/seed_1"
    with pytest.raises(ConfigError, match=r"must be one of .*strategies_tiny"):
        read_sweep("strategies_huge")


def test_the_key_of_a_run_follows_what_it_computes_and_not_where():
    def key(*words, data="tokens"):
        return key_of(compose_config([*TINY, *words]), data)

    assert key() == key("exp_manager.explicit_log_dir=elsewhere", "data.data_prefix=elsewhere/x")
    others = [key("optim.lr=1e-3"), key("optim=adamw_sr_paper"), key("model.seed=2"), key(data="other tokens")]
    assert len({key(), *others}) == 5


@pytest.mark.parametrize(
    ("probability", "degrees", "quantile"),
    [(0.975, 1, 12.7062), (0.975, 2, 4.30265), (0.975, 9, 2.26216), (0.95, 4, 2.13185), (0.995, 30, 2.75000)],
)
def test_quantiles_of_students_t_are_the_tabulated_ones(probability, degrees, quantile):
    assert t_quantile(probability, degrees) == pytest.approx(quantile, rel=1e-5)


def test_an_interval_says_how_many_values_it_is_from():
    found = interval([1.0, 2.0, 3.0])
    assert (found.mean, found.n) == (2.0, 3)
    assert found.half_width == pytest.approx(4.30265 / 3**0.5, rel=1e-5)
    assert str(interval([4.5])) == "4.5000 (n=1)"
    with pytest.raises(ValueError, match="at least one value"):
        interval([])


def test_the_stable_range_is_unbroken_and_ends_at_divergence():
    losses = {1e-4: 5.0, 3e-4: 4.05, 1e-3: 4.0, 3e-3: 4.09, 1e-2: None, 3e-2: 4.0}
    assert stable_range(losses) == (3e-4, 3e-3)
    assert stable_range({1e-3: None}) is None
    assert stable_range({1e-3: 4.0, 3e-3: float("nan")}) == (1e-3, 1e-3)


def test_a_point_names_keys_that_other_sweeps_have():
    assert Point({"optim.lr": "0.1", "model.num_layers": "3"}).name == "lr_0.1/model.num_layers_3"
