# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""A plan as tables for a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from nemo_sr.planning.comparison import PAPER_SAVING, saving
from nemo_sr.planning.plan import GIB, Plan
from nemo_sr.planning.planner import RankBytes
from nemo_sr.planning.stage import Layout

_PARTS = ("weights", "gradients", "moments", "masters", "activations", "communication", "total")

_WITHOUT = " O1 has no sequence parallelism; with none in either it is {:.0%} less."


def describe_layout(layout: Layout) -> str:
    """Return a layout in a few words."""
    words = [
        f"TP {layout.tensor_parallel}",
        f"PP {layout.pipeline_parallel}",
        f"DP {layout.data_parallel}",
        f"micro batch {layout.micro_batch}",
        f"recomputation {layout.recompute or 'none'}",
    ]
    return ", ".join(words) + (", sequence parallel" if layout.sequence_parallel else "")


def gib(size: float) -> str:
    """Return bytes as GiB with two digits behind the point."""
    return f"{size / GIB:.2f}"


def print_plan(plan: Plan, console: Console) -> None:
    """Print a plan."""
    description = plan.description
    console.print(
        f"{description.architecture}, {description.num_parameters:,} parameters, vocabulary {description.vocab_size}, "
        f"attention {'fused' if plan.fused_attention else 'of Megatron-core itself'}.\n"
        f"{plan.layout.num_ranks} GPUs of {gib(plan.memory)} GiB: {describe_layout(plan.layout)}, "
        f"{plan.num_micro_batches} micro batches a step.",
        highlight=False,
    )
    console.print(_strategies(plan))
    console.print(
        f"adamw_sr needs {saving(plan.needs, 'adamw_sr', 'adamw_amp'):.0%} less than mixed precision as O1 "
        f"(the paper: {PAPER_SAVING:.0%}) and {saving(plan.needs, 'adamw_sr', 'adamw'):.0%} less than O2."
        + ("" if plan.layout.sequence_parallel is False else _WITHOUT.format(plan.saving_without_sequence_parallelism)),
        highlight=False,
    )
    if len(plan.stages) > 1:
        console.print(_stages(plan))
    if plan.variants:
        console.print(_variants(plan))
        console.print(_candidates(plan))
    console.print(verdict(plan), highlight=False)


def verdict(plan: Plan) -> str:
    """Return whether the configured layout fits, in one line."""
    largest = plan.own.largest
    limit = plan.memory - plan.reserve
    size = f"{plan.name} with {describe_layout(plan.layout)} needs {gib(largest.total)} GiB on its fullest rank"
    room = f"{gib(plan.memory)} GiB less {gib(plan.reserve)} GiB in reserve"
    if plan.fits(largest):
        return f"FITS: {size}; there are {room}, {gib(limit - largest.total)} GiB free."
    advice = "Take another layout, fewer samples in a micro batch, recomputation, or another strategy"
    if plan.candidates:
        advice = f"The fastest that fits: {describe_layout(plan.candidates[0].layout)}"
    return f"DOES NOT FIT: {size}; there are {room}, {gib(largest.total - limit)} GiB too few. {advice}."


def _cells(rank: RankBytes) -> list[str]:
    state = rank.state
    sizes = (state.weights, state.gradients, state.moments, state.masters, rank.activations, rank.communication)
    return [gib(size) for size in (*sizes, rank.total)]


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", no_wrap=True)
    return table


def _strategies(plan: Plan) -> Table:
    table = _table("GiB on the fullest rank, by strategy", "optim.name", *_PARTS, "to O1", "to O2", "fits")
    for need in plan.needs:
        less = [-saving(plan.needs, need.regime.name, other) for other in ("adamw_amp", "adamw")]
        table.add_row(
            need.regime.name,
            *_cells(need.largest),
            *(f"{round(100 * share):+d}%" if round(100 * share) else "same" for share in less),
            "yes" if plan.fits(need.largest) else "no",
            style="bold" if need.regime.name == plan.name else None,
        )
    return table


def _stages(plan: Plan) -> Table:
    table = _table(f"{plan.name}: GiB by pipeline stage", "stage", *_PARTS)
    for rank in plan.stages:
        table.add_row(str(rank.stage), *_cells(rank))
    return table


def _variants(plan: Plan) -> Table:
    table = _table(
        f"{plan.name}: the same with other recomputation",
        "recomputation",
        "sequence parallel",
        "activations",
        "communication",
        "total",
        "fits",
    )
    for layout, largest in plan.variants:
        table.add_row(
            layout.recompute or "none",
            "yes" if layout.sequence_parallel else "no",
            *_cells(largest)[-3:],
            "yes" if plan.fits(largest) else "no",
            style="bold" if layout == plan.layout else None,
        )
    return table


def _candidates(plan: Plan) -> Table:
    table = _table(
        f"{plan.name}: what fits, by estimated speed (see --help)",
        "TP x PP x DP",
        "micro batch",
        "recomputation",
        "GiB",
        "s/step",
        "tokens/s",
    )
    for one in plan.candidates:
        layout = one.layout
        table.add_row(
            f"{layout.tensor_parallel} x {layout.pipeline_parallel} x {layout.data_parallel}",
            str(layout.micro_batch),
            layout.recompute or "none",
            gib(one.largest.total),
            f"{one.time.total:.2f}",
            f"{plan.tokens_per_step / one.time.total:,.0f}",
        )
    if not plan.candidates:
        table.add_row("none", *[""] * 5)
    return table
