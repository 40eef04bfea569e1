# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The strategies that ``optim.name`` picks: in which type weights, gradients, moments and master copy are kept."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import DictConfig

from nemo_sr.training.config import ConfigError


@dataclass(frozen=True)
class Regime:
    """What one value of ``optim.name`` means."""

    name: str
    weights: str
    grad_dtypes: tuple[str, ...]
    """The types in which gradients can be summed; the first is the default."""

    moments: str
    master: str
    label: str
    """The paper's name for it."""

    rounds_stochastically: bool = False
    available: bool = True


REGIMES = {
    regime.name: regime
    for regime in (
        Regime("adamw_sr", "bf16", ("bf16", "fp32"), "bf16", "none", "BF16+SR", rounds_stochastically=True),
        Regime("adamw_bf16", "bf16", ("bf16",), "bf16", "none", "BF16"),
        Regime("adamw", "bf16", ("fp32",), "fp32", "fp32", "(BF16, FP32) mixed precision, O2"),
        Regime("adamw_amp", "fp32, autocast", ("fp32",), "fp32", "-", "mixed precision, O1", available=False),
        Regime("adamw_fp32", "fp32", ("fp32",), "fp32", "-", "FP32", available=False),
    )
}


def find_regime(optim: DictConfig) -> Regime:
    """Return the regime of the ``optim`` part of a configuration, after checking the keys that depend on it.

    Raises:
        ConfigError: the name is unknown or not available yet, or a key is set that this strategy does not have.
    """
    known = ", ".join(name for name, regime in REGIMES.items() if regime.available)
    regime = REGIMES.get(optim.name)
    if regime is None:
        raise ConfigError(f"optim.name must be one of {known}; it is '{optim.name}'. Set optim.name to one of them.")
    if not regime.available:
        raise ConfigError(
            f"optim.name must be one of {known}; '{optim.name}' ({regime.label}) is not available yet. Use one of them."
        )
    if optim.grad_dtype not in (None, *regime.grad_dtypes):
        raise ConfigError(
            f"optim.grad_dtype must be {' or '.join(regime.grad_dtypes)} with optim.name={optim.name}; "
            f"it is '{optim.grad_dtype}'. Leave it out, or set optim.grad_dtype={regime.grad_dtypes[0]}."
        )
    for key in ("exp_avg_rounding", "exp_avg_sq_rounding", "seed"):
        if optim[key] is not None and not regime.rounds_stochastically:
            raise ConfigError(
                f"optim.{key} belongs to optim.name=adamw_sr; it is {optim[key]} and optim.name is {optim.name}. "
                f"Set optim.{key}=null, or choose the strategy as a whole with optim={optim.name}."
            )
    for key in ("exp_avg_rounding", "exp_avg_sq_rounding"):
        if optim[key] not in (None, "nearest", "stochastic"):
            raise ConfigError(
                f"optim.{key} must be nearest or stochastic; it is '{optim[key]}'. Set it to one of them or to null."
            )
    return regime


def describe_regimes() -> str:
    """Return the strategies as a table for ``--help``."""
    rows = [("optim.name", "weights", "gradients", "moments", "master", "in the paper")]
    for regime in REGIMES.values():
        label = regime.label if regime.available else f"{regime.label} (not available yet)"
        rows.append(
            (regime.name, regime.weights, " or ".join(regime.grad_dtypes), regime.moments, regime.master, label)
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
