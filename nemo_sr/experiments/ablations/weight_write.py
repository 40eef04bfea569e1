# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Ways to write the weight: a master copy, SR with all or few noise bits, compensated, to nearest."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from nemo_sr.experiments import Check, Experiment, Figure, Lab, Report, Table
from nemo_sr.experiments.ablations.loop import (
    BATCH,
    BETAS,
    SEQUENCES,
    WEIGHT_DECAY,
    fit,
    read_text,
    sample_tokens,
)
from nemo_sr.experiments.ablations.model import make_model
from nemo_sr.experiments.ablations.writing import WRITES, AdamWWritten
from nemo_sr.experiments.strategies.statistics import Interval, draw_intervals, interval


def train(*, tokens: str, write: str, lr: float, steps: int, sequences: int, seed: int) -> dict[str, float]:
    """Return validation loss and norm of the weights after a training.

    Args:
        tokens: Digest of the text.
        write: See :class:`AdamWWritten`.
        lr: Highest learning rate.
        steps: Optimizer steps.
        sequences: Of the validation.
        seed: Of weights, batches and noise.
    """
    text = read_text(tokens)
    model = make_model(text.vocab_size, seed)
    options: dict[str, Any] = {"betas": BETAS, "weight_decay": WEIGHT_DECAY, "seed": seed}
    optimizer = AdamWWritten(model.named_parameters(), write=write, **options)
    fit(model, optimizer, text.batches(BATCH, seed), steps=steps, lr=lr)
    norm = sum(param.double().square().sum().item() for param in model.parameters()) ** 0.5
    return {"loss": text.validation_loss(model, sequences), "norm": norm}


def run(lab: Lab) -> Report:
    """Compute the report."""
    tokens = sample_tokens(lab.quick)
    rates = lab.choose(quick=[1e-3], full=[3e-4, 1e-3, 3e-3])
    seeds = lab.choose(quick=[1], full=[1, 2, 3])
    writes = lab.choose(quick=["fp32", "stochastic", "nearest"], full=list(WRITES))
    steps, sequences = lab.choose(quick=10, full=200), lab.choose(quick=16, full=SEQUENCES)
    found = {
        (write, lr, seed): lab.part(
            train, tokens=tokens, write=write, lr=lr, steps=steps, sequences=sequences, seed=seed
        )
        for seed in seeds
        for lr in rates
        for write in writes
    }

    def over_master(write: str, lr: float) -> Interval:
        return interval([found[write, lr, seed]["loss"] - found["fp32", lr, seed]["loss"] for seed in seeds])

    gaps = {(write, lr): over_master(write, lr) for write in writes for lr in rates}
    rows: list[list[Any]] = []
    for write in writes:
        for lr in rates:
            gap, loss = gaps[write, lr], interval([found[write, lr, seed]["loss"] for seed in seeds])
            norm = interval([found[write, lr, seed]["norm"] / found["fp32", lr, seed]["norm"] for seed in seeds])
            rows.append(
                [write, WRITES[write], lr, loss.mean, loss.half_width, gap.mean, gap.half_width, norm.mean, loss.n]
            )
    low = rates[0]
    checks = [
        Check(
            f"at LR {low:g}, SR is nearer to the master copy than rounding to nearest",
            f"|gap| < {abs(gaps['nearest', low].mean):.4f}",
            gaps["stochastic", low].mean,
            abs(gaps["stochastic", low].mean) < abs(gaps["nearest", low].mean),
            required=False,
        ),
        Check(
            "what nearest loses against the master copy grows as LR falls",
            "rising",
            ", ".join(f"{gaps['nearest', lr].mean:.4f}" for lr in reversed(rates)),
            all(gaps["nearest", a].mean > gaps["nearest", b].mean for a, b in pairwise(rates)),
            required=False,
        ),
        *(
            Check(
                f"SR's interval against the master copy holds 0 at LR {lr:g}",
                0.0,
                gaps["stochastic", lr].mean,
                abs(gaps["stochastic", lr].mean) <= (gaps["stochastic", lr].half_width or 0.0),
                required=False,
            )
            for lr in rates
            if len(seeds) > 1
        ),
    ]

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for number, write in enumerate(writes[1:]):
            shown = [gaps[write, lr] for lr in rates]
            places = [lr * 1.04 ** (number - len(writes) / 2) for lr in rates]
            draw_intervals(axes, places, shown, fmt="o-", ms=3, label=write)
        axes.set(xscale="log", xlabel="highest learning rate", ylabel="validation loss over the master copy's (nats)")
        axes.set_yscale("symlog", linthresh=0.01)
        axes.axhline(0, color="gray", linewidth=0.8)
        axes.legend(ncol=2)

    nearest, stochastic = gaps["nearest", low], gaps["stochastic", low]
    summary = f"""
The same model, tokens and first weights, {steps} steps of {BATCH} sequences, in {len(writes)} ways to write the weight.
**fp32** keeps weight and moments in FP32 and copies; **stochastic** is AdamWSR; **bits_N** draws only the highest N of
the 16 noise bits; **compensated** rounds to nearest and adds what was left out in the next step (Kahan), for two more
bytes a parameter; **nearest** rounds to nearest. Only the write differs; moments are kept alike (but for fp32).

At the lowest rate, {low:g}, nearest ends {nearest} nats above the master copy (95 % interval, Student's t), stochastic
{stochastic}. Few-bit noise has a mean error of (2^-16 - 2^-N)/2 of a unit in the last place, toward zero, in every
write: it shrinks all weights, the more the fewer bits.

These are choices that AdamWSR does not offer, except stochastic; they live in this experiment only.
"""
    columns = ["write", "bytes a parameter", "LR", "loss", "±", "over fp32", "±", "weight norm / fp32's", "n"]
    return Report(
        summary=summary,
        checks=checks,
        tables=[Table("writes", "Validation loss in nats, 95 % intervals over seeds", columns, rows, documented=True)],
        figures=[Figure("weight_write", "Validation loss over that of an FP32 master copy, paired by seed.", draw)],
    )


EXPERIMENT = Experiment(
    name="weight_write",
    title="Stochastic, few-bit, compensated or nearest: the write of the weight",
    page="ablations",
    run=run,
)
