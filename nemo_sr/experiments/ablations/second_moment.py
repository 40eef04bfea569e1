# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""exp_avg_sq rounded stochastically or to nearest: what is left of it, and the loss."""

from __future__ import annotations

from typing import Any

import torch

from nemo_sr.experiments import Check, Experiment, Figure, Lab, Report, Table
from nemo_sr.experiments.ablations.loop import BATCH, SEQUENCES, WEIGHT_DECAY, fit, read_text, sample_tokens
from nemo_sr.experiments.ablations.model import make_model
from nemo_sr.experiments.strategies.statistics import draw_intervals, interval
from nemo_sr.optimizer import AdamWSR

LR = 3e-3
ROUNDINGS = ("stochastic", "nearest")


def train(
    *, tokens: str, rounding: str, beta2: float, lr: float, steps: int, sequences: int, seed: int
) -> dict[str, Any]:
    """Return the validation loss, and the stored exp_avg_sq over the exact one of the same gradients.

    Args:
        tokens: Digest of the text.
        rounding: Of exp_avg_sq.
        beta2: Its decay.
        lr: Highest learning rate.
        steps: Optimizer steps.
        sequences: Of the validation.
        seed: Of weights, batches and noise.

    Returns:
        "loss"; "total", the sum of the stored over that of the exact ones; "spread", the standard deviation of their
        ratio by element, where the exact one is above 1e-20.
    """
    text = read_text(tokens)
    model = make_model(text.vocab_size, seed)
    optimizer = AdamWSR(
        model.named_parameters(), betas=(0.9, beta2), weight_decay=WEIGHT_DECAY, seed=seed, exp_avg_sq_rounding=rounding
    )
    params = list(model.parameters())
    exact = [torch.zeros_like(param, dtype=torch.float64) for param in params]

    def average(step: int) -> None:
        for param, average in zip(params, exact, strict=True):
            assert param.grad is not None
            average.lerp_(param.grad.double().square(), 1 - beta2)

    fit(model, optimizer, text.batches(BATCH, seed), steps=steps, lr=lr, before_step=average)
    stored = torch.cat([optimizer.state[param]["exp_avg_sq"].double().flatten() for param in params])
    true = torch.cat([average.flatten() for average in exact])
    ratio = (stored / true)[true > 1e-20]
    return {
        "loss": text.validation_loss(model, sequences),
        "total": (stored.sum() / true.sum()).item(),
        "spread": ratio.std().item(),
    }


def run(lab: Lab) -> Report:
    """Compute the report."""
    tokens = sample_tokens(lab.quick)
    betas = lab.choose(quick=[0.999], full=[0.95, 0.999])
    seeds = lab.choose(quick=[1], full=[1, 2, 3])
    steps, sequences = lab.choose(quick=20, full=200), lab.choose(quick=16, full=SEQUENCES)
    settings = {"tokens": tokens, "lr": LR, "steps": steps, "sequences": sequences}
    found = {
        (rounding, beta2): [lab.part(train, rounding=rounding, beta2=beta2, seed=seed, **settings) for seed in seeds]
        for beta2 in betas
        for rounding in ROUNDINGS
    }
    rows: list[list[Any]] = []
    gaps, totals = {}, {}
    for (rounding, beta2), ones in found.items():
        loss, total = (interval([one[key] for one in ones]) for key in ("loss", "total"))
        spread = interval([one["spread"] for one in ones])
        totals[rounding, beta2] = total
        rows.append([beta2, rounding, loss.mean, loss.half_width, total.mean, total.half_width, spread.mean, loss.n])
    for beta2 in betas:
        pairs = zip(found["nearest", beta2], found["stochastic", beta2], strict=True)
        gaps[beta2] = interval([nearest["loss"] - stochastic["loss"] for nearest, stochastic in pairs])
    high = betas[-1]
    checks = [
        Check(
            f"SR keeps the sum of exp_avg_sq at beta2 {beta2:g}, to 2 %",
            1.0,
            totals["stochastic", beta2].mean,
            abs(totals["stochastic", beta2].mean - 1) < 0.02,
        )
        for beta2 in betas
    ]
    checks += [
        Check(
            f"to nearest, exp_avg_sq is off by more at beta2 {high:g}",
            f"> {abs(totals['stochastic', high].mean - 1):.2g} off",
            totals["nearest", high].mean,
            abs(totals["nearest", high].mean - 1) > abs(totals["stochastic", high].mean - 1),
            required=False,
        ),
        *(
            Check(
                f"nearest costs loss at beta2 {beta2:g} (interval above 0)",
                "> 0",
                gaps[beta2].mean,
                gaps[beta2].is_above_zero,
                required=False,
            )
            for beta2 in betas
        ),
    ]

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        for rounding in ROUNDINGS:
            shown = [totals[rounding, beta2] for beta2 in betas]
            draw_intervals(left, range(len(betas)), shown, fmt="o-", label=rounding)
        draw_intervals(right, range(len(betas)), [gaps[beta2] for beta2 in betas], fmt="o-")
        for axes in (left, right):
            axes.set_xticks(range(len(betas)), [f"{beta2:g}" for beta2 in betas])
            axes.set_xlabel("beta2")
        left.set_ylabel("sum of exp_avg_sq / exact")
        right.set_ylabel("loss of nearest - loss of SR (nats)")
        left.legend()

    words = "; ".join(
        f"at beta2 {beta2:g} {totals['nearest', beta2].mean:.3f} to nearest and "
        f"{totals['stochastic', beta2].mean:.3f} with SR, and nearest ends {gaps[beta2]} nats above SR"
        for beta2 in betas
    )
    summary = f"""
The paper rounds both moments to nearest; AdamWSR rounds exp_avg_sq stochastically by default. Here is what that changes
in a training of {steps} steps at LR {LR:g}: the sum of all stored second moments over that of exact ones, averaged in
FP64 from the same gradients: {words}.

An exp_avg_sq that is too small makes steps too large, and the reverse: whether that hurts depends on the learning rate
as well, so the loss may go either way here.
"""
    columns = ["beta2", "exp_avg_sq", "loss", "±", "stored / exact", "±", "spread of the ratio", "n"]
    return Report(
        summary=summary,
        checks=checks,
        tables=[
            Table("second_moment", "After the last step, 95 % intervals over seeds", columns, rows, documented=True)
        ],
        figures=[Figure("second_moment", "What is stored over the exact average, and its cost.", draw, (6.4, 2.8))],
    )


EXPERIMENT = Experiment(name="second_moment", title="SR or nearest for the second moment", page="ablations", run=run)
