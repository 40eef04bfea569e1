# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Advice from made-up sums: each criterion on both of its sides; and which group of layers a parameter belongs to."""

import pytest
import torch
from toy import overrides

from nemo_sr.training.advice import Observed, give_advice
from nemo_sr.training.config import compose_config
from nemo_sr.training.metrics import LAYER_GROUPS, METRICS
from nemo_sr.training.regimes import REGIMES
from nemo_sr.training.rounding_sums import SUMS, RoundingSums, layer_group
from nemo_sr.training.telemetry import TelemetryCallback


def observe(*, shortfall=0.05, stochastic=True, exp_avg_sq="stochastic", troubles=0, **changes):
    sums = {
        "elements": 1000.0,
        "lost": 830.0,
        "moved": 200.0,
        "in_ulps": 210.0,
        "squared_errors": 4.0,
        "squared_updates": 1.0,
        "exp_avg_sq_lost": 100.0,
        "error_along_update": 2.0,
        "error_from_zero": -8.0,
        "squared_errors_in_ulps": 16.0,
        **changes,
    }
    table = torch.zeros(len(LAYER_GROUPS), len(SUMS), dtype=torch.float64)
    table[0] = table[2] = torch.tensor([sums[name] / 2 for name in SUMS])
    return Observed(RoundingSums(table), shortfall, stochastic, exp_avg_sq, troubles)


@pytest.mark.parametrize(
    ("changes", "line", "said"),
    [
        (
            {},
            0,
            "83.0% of updates are below half an ulp (20.0% of weights move in a step): stochastic rounding m",
        ),
        ({"lost": 99.0}, 0, "rounding to nearest would lose little"),
        ({"stochastic": False}, 0, "lost: optim.name=adamw_sr would keep them."),
        ({"stochastic": False, "lost": 99.0}, 0, "stochastic rounding would change little"),
        ({}, 1, "unbiased within noise: +0.5 standard errors along the update, -2.0 away from zero."),
        ({"error_from_zero": -20.5}, 1, "The rounding is biased: +0.5 standard errors along the update, -5.1 away"),
        ({"error_along_update": -20.5, "stochastic": False}, 1, "biased, as rounding to nearest is: -5.1"),
        ({}, 2, "2 times its update, and the loss had no spike: the learning rate may be raised"),
        ({"squared_errors": 0.24}, 2, "0.49 times its update: less than 0.5, so rounding asks for no higher"),
        ({"troubles": 2}, 2, "2 loss spikes or skipped steps: do not raise"),
        ({}, 3, "5.0% below the exact one: keep optim.exp_avg_sq_rounding=stochastic."),
        ({"exp_avg_sq": "nearest"}, 3, "set optim.exp_avg_sq_rounding=stochastic."),
        ({"shortfall": -0.009}, 3, "0.9% above the exact one: either way of rounding it will do."),
        ({"stochastic": False, "exp_avg_sq": "nearest"}, 2, "5.0% below the exact one, as this run's are."),
    ],
)
def test_each_criterion_has_its_words(changes, line, said):
    assert said in give_advice(observe(**changes))[line]


def test_metrics_are_ratios_of_sums_and_listed():
    metrics = observe().sums.metrics()
    assert metrics == {
        "sr/share_lost": 0.83,
        "sr/share_moved": 0.2,
        "sr/update_in_ulps": 0.21,
        "sr/noise_to_update": 2.0,
        "sr/bias_along_update": 0.5,
        "sr/bias_from_zero": -2.0,
        "sr/exp_avg_sq_share_lost": 0.1,
        "sr/update_in_ulps/embedding": 0.21,
        "sr/update_in_ulps/mlp": 0.21,
    }
    assert metrics.keys() <= METRICS.keys()
    nothing = RoundingSums(torch.zeros(len(LAYER_GROUPS), len(SUMS), dtype=torch.float64))
    assert set(nothing.metrics().values()) == {0.0}
    assert (observe().sums + nothing).metrics() == metrics


def test_strategies_with_fp32_weights_have_no_telemetry_and_say_so(toy_prefix, tmp_path):
    words = overrides(toy_prefix, tmp_path / "run", max_steps=20)
    said = {name: TelemetryCallback(compose_config([*words, f"optim.name={name}"])).advice() for name in REGIMES}
    for name in ("adamw", "adamw_amp", "adamw_fp32"):
        assert said.pop(name) == [
            f"No update is lost with optim.name={name}, which keeps weights in FP32: no telemetry."
        ]
    assert said == {"adamw_sr": [], "adamw_bf16": []}
    assert TelemetryCallback(compose_config([*words, "trainer.telemetry_every_n_steps=null"])).advice() == []


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("embedding.word_embeddings.weight", "embedding"),
        ("embedding.position_embeddings.weight", "embedding"),
        ("decoder.layers.3.self_attention.linear_qkv.weight", "attention"),
        ("decoder.layers.3.self_attention.linear_qkv.layer_norm_weight", "norm"),
        ("decoder.layers.3.self_attention.q_layernorm.weight", "norm"),
        ("decoder.layers.3.mlp.linear_fc2.bias", "mlp"),
        ("decoder.layers.3.mlp.experts.experts.0.linear_fc1.weight", "mlp"),
        ("decoder.final_layernorm.weight", "norm"),
        ("output_layer.weight", "output"),
        ("something.else", "other"),
    ],
)
def test_groups_of_layers(name, group):
    assert LAYER_GROUPS[layer_group(name)] == group
