# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The report on a comparison of strategies: of the experiment's runs, or of a cluster's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from nemo_sr.experiments import Check, Report, Table
from nemo_sr.experiments.strategies.analysis import Comparison, compare
from nemo_sr.experiments.strategies.figures import comparison_figures
from nemo_sr.experiments.strategies.results import Result
from nemo_sr.experiments.strategies.statistics import CONFIDENCE, TOLERANCE
from nemo_sr.experiments.strategies.sweep import STRATEGIES

REFERENCE = "adamw_fp32"
NEAREST = "adamw_bf16"
SR = "adamw_sr"


def build_report(results: Sequence[Result], *, introduction: str, planned: Mapping[str, Any] | None = None) -> Report:
    """Make the report.

    Args:
        results: Runs, of any corpora, strategies, learning rates and seeds; unfinished ones are counted only.
        introduction: What was trained, and how.
        planned: Bytes of the fullest GPU by strategy, for a model of full size (scripts/plan.py).

    Raises:
        ValueError: no run is finished.
    """
    comparisons = compare(results)
    if not comparisons:
        raise ValueError("a report needs at least one finished run; there is none. Train first, or wait.")
    tables = [
        Table(
            "final",
            f"Each strategy at its best learning rate, {CONFIDENCE:.0%} intervals",
            _FINAL,
            _final(comparisons, results, planned),
            documented=True,
        ),
        Table("sweep", "Every learning rate", _SWEEP, _sweep(comparisons), documented=True),
        Table(
            "costs", "State on one rank, and bytes of the fullest GPU at full size", _COSTS, _costs(results, planned)
        ),
        Table("curves", "Validation loss of every run", _CURVES, _curves(results)),
    ]
    return Report(
        summary="\n\n".join([introduction, *(_findings(one) for one in comparisons), _METHOD]),
        checks=[check for one in comparisons for check in _checks(one)],
        tables=tables,
        figures=comparison_figures(comparisons),
    )


def speed_table(results: Sequence[Result]) -> Table:
    """Return steps/s by strategy: of the fastest of its runs, since other work on the machine slows runs down."""
    rows: list[list[Any]] = []
    for name, own in _by_strategy(results).items():
        speeds = [one.steps_per_second for one in own if one.steps_per_second is not None]
        if speeds:
            rows.append([name, max(speeds), len(speeds)])
    return Table(
        "speed", "Steps in a second, of the fastest run", ["strategy", "steps/s", "runs"], rows, documented=True
    )


_METHOD = f"""
The best learning rate is that with the lowest final loss of the first seed, which ran at all rates. Differences are
paired by seed (same initial weights, same batches), and intervals are Student's t at {CONFIDENCE:.0%} over the seeds;
one seed has none. A learning rate is stable if its loss is within {TOLERANCE:g} nats of the strategy's best, and so are
those between.
"""

_FINAL = [
    *("corpus", "strategy", "best LR", "loss", "loss ±", "perplexity", "over FP32", "over FP32 ±", "n"),
    *("stable from", "stable to", "bytes a parameter", "planned, bytes"),
]


def _final(
    comparisons: Sequence[Comparison], results: Sequence[Result], planned: Mapping[str, Any] | None
) -> list[list[Any]]:
    rows = []
    costs = {row[0]: (row[-3], row[-1]) for row in _costs(results, planned)}
    for one in comparisons:
        for name in one.strategies:
            lr, stable = one.best_rate(name), one.stable(name)
            loss = one.loss(name, lr)
            gap = one.best_difference(name, REFERENCE) if REFERENCE in one.strategies else None
            rows.append(
                [
                    *(one.corpus, name, lr, loss.mean, loss.half_width, math.exp(loss.mean)),
                    *((gap.mean, gap.half_width) if gap and name != REFERENCE else (None, None)),
                    *(loss.n, *(stable or (None, None)), *costs[name]),
                ]
            )
    return rows


_SWEEP = ["corpus", "strategy", "LR", "loss", "loss ±", "over FP32 at this LR", "over FP32 ±", "n"]


def _sweep(comparisons: Sequence[Comparison]) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for one in comparisons:
        for name in one.strategies:
            for lr in one.rates:
                if not one.losses(name, lr):
                    if any(r.diverged for r in one.results if (r.strategy, r.lr) == (name, lr)):
                        rows.append([one.corpus, name, lr, "diverged", None, None, None, 0])
                    continue
                loss, gap = one.loss(name, lr), one.difference(name, lr, REFERENCE, lr)
                shown = (gap.mean, gap.half_width) if gap and name != REFERENCE else (None, None)
                rows.append([one.corpus, name, lr, loss.mean, loss.half_width, *shown, loss.n])
    return rows


_KINDS = ("weights", "gradients", "moments", "masters")
_COSTS = [
    "strategy", *(f"{kind}, bytes a parameter" for kind in _KINDS), "sum", "planned state, bytes", "planned, bytes",
]  # fmt: skip


def _costs(results: Sequence[Result], planned: Mapping[str, Any] | None) -> list[list[Any]]:
    rows = []
    for name, own in _by_strategy(results).items():
        held = next((one for one in own if one.bytes), None)
        measured: list[Any] = [None] * (len(_KINDS) + 1)
        if held is not None:
            each = [held.bytes[kind] / held.num_parameters for kind in _KINDS]
            measured = [*each, sum(each)]
        plan = (planned or {}).get(name)
        rows.append([name, *measured, *((plan["state"], plan["total"]) if plan else (None, None))])
    return rows


_CURVES = ["corpus", "strategy", "LR", "seed", "step", "loss"]


def _curves(results: Sequence[Result]) -> list[list[Any]]:
    return [
        [one.corpus, one.strategy, one.lr, one.seed, int(step), float(loss)]
        for one in results
        for step, loss in zip(one.validation.steps, one.validation.values, strict=True)
    ]


def _by_strategy(results: Sequence[Result]) -> dict[str, list[Result]]:
    found = {name for one in compare(results) for name in one.strategies}
    ordered = sorted(found, key=STRATEGIES.index)
    return {name: [one for one in results if one.strategy == name] for name in ordered}


def _findings(one: Comparison) -> str:
    said = []
    for name in one.strategies:
        gap = one.best_difference(name, REFERENCE) if REFERENCE in one.strategies and name != REFERENCE else None
        against = f", {gap} nats over FP32's" if gap else ""
        lr = one.best_rate(name)
        said.append(f"`{name}` {one.loss(name, lr)} at LR {lr:g}{against}")
    unfinished = sum(r.loss is None and not r.diverged for r in one.results)
    missing = f" {unfinished} runs are not finished and are left out." if unfinished else ""
    return f"**{one.corpus}**, validation loss at each strategy's best rate: {'; '.join(said)}.{missing}"


def _checks(one: Comparison) -> list[Check]:
    if not {SR, NEAREST, REFERENCE} <= set(one.strategies):
        return []
    checks = []
    for name in ("adamw_fp32", "adamw", "adamw_amp"):
        gap = one.best_difference(SR, name) if name in one.strategies else None
        if gap is not None and gap.half_width is not None:
            holds = abs(gap.mean) <= gap.half_width
            statement = f"{one.corpus}: SR at its best LR is within noise of {name} at its own"
            checks.append(Check(statement, "interval holds 0", str(gap), holds, required=False))
    best = one.best_difference(NEAREST, SR)
    if best is not None:
        statement = f"{one.corpus}: BF16 to nearest at its best LR is worse than SR at its own"
        checks.append(Check(statement, "> 0, beyond its interval", str(best), best.is_above_zero, required=False))
    gaps = {
        name: {lr: gap for lr in one.rates if (gap := one.difference(name, lr, REFERENCE, lr)) is not None}
        for name in (NEAREST, SR)
    }
    shown = {name: ", ".join(f"{lr:g}: {gap.mean:+.4f}" for lr, gap in own.items()) for name, own in gaps.items()}
    best_rate = one.best_rate(REFERENCE)
    lost = {lr: gap.mean for lr, gap in gaps[NEAREST].items() if lr <= best_rate}
    if lost:
        statement = f"{one.corpus}: what nearest loses against FP32 grows as LR falls from FP32's best"
        holds = list(lost.values()) == sorted(lost.values(), reverse=True) and min(lost.values()) > 0
        checks.append(Check(statement, "falling with LR", shown[NEAREST], holds, required=False))
    paired = [(abs(gaps[SR][lr].mean), abs(gap)) for lr, gap in lost.items() if lr in gaps[SR]]
    if paired:
        statement = f"{one.corpus}: SR is nearer to FP32 than nearest is, at every LR up to FP32's best"
        holds = all(own < other for own, other in paired)
        checks.append(Check(statement, "smaller at each", shown[SR], holds, required=False))
    for name in ("adamw", NEAREST):
        own, other = one.stable(SR), one.stable(name) if name in one.strategies else None
        if own and other:
            statement = f"{one.corpus}: SR's stable range reaches as high as that of {name}"
            checks.append(Check(statement, f">= {other[1]:g}", own[1], own[1] >= other[1], required=False))
    return checks
