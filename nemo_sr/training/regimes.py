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
    """"bf16" or "fp32"."""

    grad_dtypes: tuple[str, ...]
    """The types in which gradients can be summed; the first is the default."""

    moments: str
    master: str
    """"fp32" where there is a copy of the weights in it, else "none"."""

    label: str
    """The paper's name for it."""

    autocast: bool = False
    """Whether matrix products take FP32 weights and activations as BF16."""

    rounds_stochastically: bool = False

    @property
    def has_own_optimizer(self) -> bool:
        """Whether it steps BF16 weights without masters, which Megatron-core's own optimizers do not."""
        return self.weights == "bf16" and self.master == "none"


REGIMES = {
    regime.name: regime
    for regime in (
        Regime("adamw_sr", "bf16", ("bf16", "fp32"), "bf16", "none", "BF16+SR", rounds_stochastically=True),
        Regime("adamw_bf16", "bf16", ("bf16",), "bf16", "none", "BF16"),
        Regime("adamw", "bf16", ("fp32",), "fp32", "fp32", "(BF16, FP32) mixed precision, O2"),
        Regime("adamw_amp", "fp32", ("fp32",), "fp32", "none", "mixed precision, O1", autocast=True),
        Regime("adamw_fp32", "fp32", ("fp32",), "fp32", "none", "FP32"),
    )
}


def find_regime(optim: DictConfig) -> Regime:
    """Return the regime of the ``optim`` part of a configuration, after checking the keys that depend on it.

    Raises:
        ConfigError: the name is unknown, or a key is set that this strategy does not have.
    """
    regime = REGIMES.get(optim.name)
    if regime is None:
        raise ConfigError(
            f"optim.name must be one of {', '.join(REGIMES)}; it is '{optim.name}'. Set optim.name to one of them."
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
    return regime


def scaled_rates(optim: DictConfig) -> tuple[float, float]:
    """Return the highest learning rate, and that of embedding and output layer, under ``optim.sr_lr_scale``.

    The lowest rates are not scaled.
    """
    scale = optim.sr_lr_scale if REGIMES[optim.name].rounds_stochastically else 1.0
    return scale * optim.lr, scale * (optim.lr if optim.decoupled_lr is None else optim.decoupled_lr)


def describe_regimes() -> str:
    """Return the strategies as a table for ``--help``."""
    rows = [("optim.name", "weights", "gradients", "moments", "master", "in the paper")]
    for regime in REGIMES.values():
        weights = f"{regime.weights}, autocast" if regime.autocast else regime.weights
        rows.append(
            (regime.name, weights, " or ".join(regime.grad_dtypes), regime.moments, regime.master, regime.label)
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
