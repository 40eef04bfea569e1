# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""How much noise stochastic rounding puts into exp_avg_sq, and what rounding to nearest does to it."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from nemo_sr.experiments import Check, Experiment, Figure, Lab, Report, Table
from nemo_sr.experiments.theory.rounding import rounding_variance
from nemo_sr.optimizer import AdamWSR
from nemo_sr.update import StepScalars, adamw_float32

STATED = {0.95: 0.008, 0.99: 0.019, 0.999: 0.047}
"""Relative noise by beta2, as the project's notes state it."""

PLACES = 8
"""Places within a binade at which the second moment's limit is put; there the last place is from 2^-7 to 2^-8 of it."""


def second_moments(*, rounding: str, beta2: float, elements: int, spans: int, seed: int) -> list[list[float]]:
    """Average Gaussian gradients in AdamWSR's exp_avg_sq, beside the same average without rounding.

    Args:
        rounding: Of exp_avg_sq: "stochastic" or "nearest".
        beta2: Its decay.
        elements: At each place within a binade.
        spans: Steps to take, in units of 1 / (1 - beta2).
        seed: Of gradients and noise.

    Returns:
        For each place: the limit; mean of the error, and mean of its square, the error being the rounded over the
        unrounded second moment less 1; the mean square that the variances (x - lo)(hi - x) of all steps add up to; the
        standard error of the difference of these two; and the standard deviation of the unrounded moment itself.
    """
    generator = torch.Generator().manual_seed(seed)
    limit = 2.0 ** ((torch.arange(PLACES, dtype=torch.float64) + 0.5) / PLACES).repeat_interleave(elements)
    scale = limit.sqrt().float()
    weight = torch.nn.Parameter(torch.ones(len(limit), dtype=torch.bfloat16))
    options: dict[str, Any] = {"lr": 0.0, "betas": (0.0, beta2), "eps": 1e-8, "weight_decay": 0.0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that rounding to nearest stalls: it is what is measured
        optimizer = AdamWSR([("w", weight)], **options, seed=seed, exp_avg_sq_rounding=rounding)
    steps = round(spans / (1 - beta2))
    exact, variance = torch.zeros_like(limit), torch.zeros_like(limit)
    rounded = torch.zeros_like(limit, dtype=torch.bfloat16)
    for step in range(1, steps + 1):
        weight.grad = grad = (scale * torch.randn(len(limit), generator=generator)).bfloat16()
        scalars = StepScalars.of_step(step, **options)
        _, _, x = adamw_float32(weight.detach(), grad, grad, rounded, scalars)
        variance = variance * beta2**2 + rounding_variance(x)
        exact = exact * beta2 + grad.double() ** 2 * (1 - beta2)
        optimizer.step()
        rounded = optimizer.state[weight]["exp_avg_sq"].clone()
    error, claimed = rounded.double() / exact - 1, variance / exact**2
    own = exact / (limit * (1 - beta2**steps)) - 1
    rows = []
    for here in (slice(place * elements, (place + 1) * elements) for place in range(PLACES)):
        difference = error[here] ** 2 - claimed[here]
        rows.append(
            [
                limit[here][0].item(),
                error[here].mean().item(),
                (error[here] ** 2).mean().item(),
                claimed[here].mean().item(),
                difference.std().item() / elements**0.5,
                own[here].std().item(),
            ]
        )
    return rows


def run(lab: Lab) -> Report:
    """Compute the report."""
    settings = {"elements": lab.choose(quick=256, full=4096), "spans": lab.choose(quick=2, full=6), "seed": 0}
    rows: list[list[Any]] = []
    checks, noises = [], []
    for beta2, stated in STATED.items():
        own = lab.part(second_moments, rounding="stochastic", beta2=beta2, **settings)
        rows += [[beta2, limit, claimed**0.5, square**0.5, itself] for limit, _, square, claimed, _, itself in own]
        noise, claim = ((sum(row[i] for row in own) / PLACES) ** 0.5 for i in (2, 3))
        error = (sum(row[4] ** 2 for row in own) ** 0.5 / PLACES) / (2 * noise)
        bias = sum(row[1] for row in own) / PLACES
        bias_error = noise / (PLACES * settings["elements"]) ** 0.5
        noises.append(noise)
        checks += [
            Check(
                f"beta2 {beta2}: SR's relative noise is what (x - lo)(hi - x) of all steps adds up to",
                claim,
                noise,
                abs(noise - claim) <= 4 * error,
                error,
            ),
            Check(f"beta2 {beta2}: SR keeps the mean", 0.0, bias, abs(bias) <= 4 * bias_error, bias_error),
            Check(
                f"beta2 {beta2}: that noise is about {stated:.1%} (10 % off at most)",
                stated,
                noise,
                abs(noise / stated - 1) <= 0.1,
                error,
                required=False,
            ),
        ]
    nearest = [lab.part(second_moments, rounding="nearest", beta2=beta2, **settings) for beta2 in STATED]
    biases = [sum(row[1] for row in one) / PLACES for one in nearest]
    checks.append(
        Check("control: to nearest the mean at beta2 0.999 is off", "> 1 %", biases[-1], abs(biases[-1]) > 0.01)
    )

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for beta2 in STATED:
            at = [row for row in rows if row[0] == beta2]
            (line,) = axes.plot([row[1] for row in at], [100 * row[3] for row in at], "o-", label=f"beta2 {beta2}")
            axes.axhline(100 * STATED[beta2], color=line.get_color(), ls=":", lw=0.8)
        axes.set(
            xlabel="second moment (place within a binade)", ylabel="relative noise added by SR (%)", ylim=(0, None)
        )
        axes.legend()

    def percent(values: list[float]) -> str:
        return ", ".join(f"{value:.2%}" for value in values)

    spread = [row[4] for row in rows[::PLACES]]
    highest = [max(row[3] for row in rows if row[0] == beta2) for beta2 in STATED]
    summary = f"""
exp_avg_sq is an average with a memory of 1/(1 - beta2) steps. Each step's rounding adds the variance (x - lo)(hi -
x), and later steps forget it by beta2 squared: these sums are what is expected. Gaussian gradients went through
AdamWSR itself, {PLACES * settings["elements"]:,} elements whose second moments lie evenly (in the logarithm) over a
binade, with the same average in FP64 beside it.

SR adds a relative noise of {percent(noises)} at beta2 {", ".join(map(str, STATED))} (root mean square over the
binade). It depends on the place in the binade, and is largest near its lower end, with {percent(highest)}. The dotted
lines are the values that the project's notes state ({percent(list(STATED.values()))}), close to those. The average of
such gradients itself fluctuates by {percent(spread)}.

Rounded to nearest the mean is off by {percent(biases)}, after the same number of steps from zero. (The average starts
at zero, as in training; it is below its limit by beta2^t, for which AdamW corrects.)
"""
    columns = ["beta2", "second moment", "noise claimed", "noise measured", "noise of the average itself"]
    return Report(
        summary=summary,
        checks=checks,
        tables=[Table("noise", "Relative noise by place in the binade", columns, rows)],
        figures=[Figure("moment_noise", "Relative noise that SR adds to exp_avg_sq.", draw, (5, 2.8))],
    )


EXPERIMENT = Experiment(name="moment_noise", title="The noise in exp_avg_sq", page="theory", run=run)
