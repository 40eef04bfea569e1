# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The experiments there are, in the order in which they are run and shown."""

from __future__ import annotations

from importlib import import_module

from nemo_sr.experiments.frame.experiment import Experiment

MODULES = (
    "toy",
    "theory.rounding_moments",
    "theory.effective_gradient",
    "theory.quadratic",
    "theory.small_steps",
    "theory.regularisation",
    "theory.nearest_bias",
    "theory.adam_bound",
    "theory.few_bits",
    "theory.moment_noise",
    "strategies.comparison",
    "ablations.weight_write",
    "ablations.noise_sharing",
    "ablations.second_moment",
    "ablations.accumulation",
    "ablations.weight_decay",
)
"""Below ``nemo_sr.experiments``; each has a constant EXPERIMENT."""


def experiments() -> dict[str, Experiment]:
    """Import all experiments, by name."""
    found: dict[str, Experiment] = {}
    for module in MODULES:
        experiment: Experiment = import_module(f"nemo_sr.experiments.{module}").EXPERIMENT
        assert experiment.name not in found, experiment.name
        found[experiment.name] = experiment
    return found
