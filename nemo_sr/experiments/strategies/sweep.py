# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The runs of a comparison, from ``conf/experiment/NAME.yaml``: what its ``hydra.sweeper.params`` span."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

STRATEGIES = ("adamw_fp32", "adamw_amp", "adamw", "adamw_bf16", "adamw_sr", "adamw_sr_paper")
"""Choices of the group ``optim``, in the order of tables and figures."""

FORMAT = 1
"""Of the key of a run; raise it when runs of the same configuration would come out otherwise."""


@dataclass(frozen=True)
class Point:
    """One run of a sweep.

    Args:
        settings: Value by the key that the sweep varies: ``optim``, ``optim.lr``, ``model.seed``.
    """

    settings: dict[str, str]

    @property
    def words(self) -> list[str]:
        """What pretrain_gpt.py is told for it."""
        return [f"{key}={value}" for key, value in self.settings.items()]

    @property
    def name(self) -> str:
        """Of its folder: strategy/lr_LR/seed_SEED, and other keys of the sweep as they are."""
        named = {"optim": "{}", "optim.lr": "lr_{}", "model.seed": "seed_{}"}
        parts = [named[key].format(self.settings[key]) for key in named if key in self.settings]
        parts += [f"{key}_{value}" for key, value in self.settings.items() if key not in named]
        return "/".join(parts)


def find_experiment(words: Sequence[str]) -> str | None:
    """Return NAME of ``+experiment=NAME`` in a command line."""
    found = [word.partition("=")[2] for word in words if word.startswith(("+experiment=", "experiment="))]
    return found[-1] if found else None


def read_sweep(name: str) -> list[Point]:
    """Return the runs of an experiment's sweep; the key that is written last varies fastest.

    Args:
        name: Of the file, without its ending.

    Raises:
        ConfigError: there is no such file, or it has no sweep.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    from nemo_sr.training.config import ConfigError, find_conf

    file = find_conf() / "experiment" / f"{name}.yaml"
    if not file.is_file():
        known = sorted(path.stem for path in file.parent.glob("*.yaml"))
        raise ConfigError(f"+experiment must be one of {', '.join(known)}; it is '{name}'. Choose one of them.")
    params = OmegaConf.select(OmegaConf.load(file), "hydra.sweeper.params")
    if not params:
        raise ConfigError(f"{file} must have hydra.sweeper.params, the values to train with; it has none. Add them.")
    axes = []
    for override in OverridesParser.create().parse_overrides([f"{key}={value}" for key, value in params.items()]):
        values = override.sweep_string_iterator() if override.is_sweep_override() else [override.get_value_string()]
        axes.append([(override.key_or_group, str(value)) for value in values])
    return [Point(dict(settings)) for settings in itertools.product(*axes)]


def key_of(config: Any, data: str) -> str:
    """Return the key of a run: a digest of its whole configuration, as far as it differs from defaults, and its data.

    A key that the configuration gets in another version, with a default that changes nothing, leaves the digest alone.

    Args:
        config: The composed configuration. Where its folder and its data lie does not count.
        data: Digest of the tokens.

    Returns:
        16 hexadecimal digits; other ones with another torch or processor.
    """
    import torch
    from omegaconf import OmegaConf

    from nemo_sr.experiments.frame.provenance import processor
    from nemo_sr.training.schema import PretrainConfig

    defaults = _flatten(OmegaConf.to_container(OmegaConf.structured(PretrainConfig)))
    own = {
        key: value for key, value in _flatten(OmegaConf.to_container(config)).items() if value != defaults.get(key, ...)
    }
    described = {**{key: value for key, value in own.items() if key not in _PLACES}, "data.data_prefix": data}
    text = json.dumps([FORMAT, torch.__version__, processor(), described], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


_PLACES = ("exp_manager.explicit_log_dir", "exp_manager.name", "data.index_mapping_dir")


def _flatten(node: Any, prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in node.items():
        found |= _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found
