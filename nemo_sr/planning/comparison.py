# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The paper's comparison: every strategy under one layout, in bytes of the rank that needs most."""

from __future__ import annotations

from dataclasses import dataclass, replace

from omegaconf import DictConfig

from nemo_sr.planning.planner import Planner, RankBytes
from nemo_sr.planning.stage import Layout
from nemo_sr.training.regimes import REGIMES, Regime

PAPER_SAVING = 0.30
"""What the paper (arXiv 2502.20566) saves with SR against mixed precision as O1."""


@dataclass(frozen=True)
class Need:
    """What a strategy needs."""

    regime: Regime
    grad_dtype: str
    layout: Layout
    largest: RankBytes


def strategy_layout(layout: Layout, regime: Regime) -> Layout:
    """Return the layout as `regime` runs it: under autocast there is no sequence parallelism."""
    return replace(layout, sequence_parallel=False) if regime.autocast else layout


def compare_strategies(planner: Planner, layout: Layout, optim: DictConfig) -> list[Need]:
    """Return what each strategy needs under `layout`.

    Args:
        planner: The model.
        layout: The layout.
        optim: The keys of ``schema.OptimConfig``; its ``grad_dtype`` holds for its own strategy.
    """
    needs = []
    for regime in REGIMES.values():
        own = strategy_layout(layout, regime)
        grad_dtype = (optim.grad_dtype if regime.name == optim.name else None) or regime.grad_dtypes[0]
        needs.append(Need(regime, grad_dtype, own, planner.largest(own, regime, grad_dtype)))
    return needs


def saving(needs: list[Need], name: str, against: str) -> float:
    """Return the share of its bytes that strategy `name` saves against another."""
    totals = {need.regime.name: need.largest.total for need in needs}
    return 1 - totals[name] / totals[against]
