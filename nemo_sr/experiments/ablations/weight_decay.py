# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Weight decay of BF16 weights: with SR, and with the ways in which rounding to nearest loses it."""

from __future__ import annotations

from typing import Any

import torch

from nemo_sr.experiments import Check, Experiment, Figure, Lab, Report, Table
from nemo_sr.experiments.ablations.loop import BATCH, BETAS, SEQUENCES, fit, read_text, sample_tokens
from nemo_sr.experiments.ablations.model import make_model
from nemo_sr.experiments.ablations.writing import AdamWWritten
from nemo_sr.experiments.strategies.statistics import draw_intervals, interval

RULES = {
    "fp32": "FP32 master copy",
    "stochastic": "SR, decay and step in one write",
    "nearest": "to nearest, decay and step in one write",
    "torch": "torch.optim.AdamW in BF16: two writes, to nearest",
}
LR = 1e-3


def _optimizer(rule: str, params: Any, *, weight_decay: float, seed: int) -> torch.optim.Optimizer:
    options: dict[str, Any] = {"lr": LR, "betas": BETAS, "weight_decay": weight_decay}
    if rule == "torch":
        return torch.optim.AdamW([param for _, param in params], **options)
    return AdamWWritten(params, write=rule, seed=seed, **options)


def decay_alone(*, rule: str, weight_decay: float, steps: int, elements: int, seed: int) -> float:
    """Return the mean of weights that began as 1.5 after steps with gradients of zero.

    Args:
        rule: One of :data:`RULES`.
        weight_decay: Of a step, times the learning rate :data:`LR`.
        steps: Steps.
        elements: Weights.
        seed: Of the noise.
    """
    weight = torch.nn.Parameter(torch.full((elements,), 1.5, dtype=torch.bfloat16))
    optimizer = _optimizer(rule, [("w", weight)], weight_decay=weight_decay, seed=seed)
    for _ in range(steps):
        weight.grad = torch.zeros_like(weight)
        optimizer.step()
    return float(weight.detach().double().mean().item())


def train(
    *, tokens: str, rule: str, weight_decay: float, lr: float, steps: int, sequences: int, seed: int
) -> dict[str, float]:
    """Return validation loss and norm of the matrices after a training.

    Args:
        tokens: Digest of the text.
        rule: One of :data:`RULES`.
        weight_decay: Of all weights.
        lr: Highest learning rate.
        steps: Optimizer steps.
        sequences: Of the validation.
        seed: Of weights, batches and noise.
    """
    text = read_text(tokens)
    model = make_model(text.vocab_size, seed)
    optimizer = _optimizer(rule, list(model.named_parameters()), weight_decay=weight_decay, seed=seed)
    fit(model, optimizer, text.batches(BATCH, seed), steps=steps, lr=lr)
    norm = sum(param.double().square().sum().item() for param in model.parameters() if param.dim() == 2) ** 0.5
    return {"loss": text.validation_loss(model, sequences), "norm": norm}


def run(lab: Lab) -> Report:
    """Compute the report."""
    tokens = sample_tokens(lab.quick)
    decays = lab.choose(quick=[0.0, 1.0], full=[0.0, 1.0])
    seeds = lab.choose(quick=[1], full=[1, 2, 3])
    steps, sequences = lab.choose(quick=10, full=200), lab.choose(quick=16, full=SEQUENCES)
    alone_steps, elements = lab.choose(quick=50, full=1000), lab.choose(quick=4096, full=16384)
    alone = {
        rule: lab.part(decay_alone, rule=rule, weight_decay=0.1, steps=alone_steps, elements=elements, seed=1) / 1.5
        for rule in RULES
    }
    expected = (1 - LR * 0.1) ** alone_steps
    found = {
        (rule, decay): [
            lab.part(
                train, tokens=tokens, rule=rule, weight_decay=decay, lr=LR, steps=steps, sequences=sequences, seed=seed
            )
            for seed in seeds
        ]
        for decay in decays
        for rule in RULES
    }

    def shrinkage(rule: str, decay: float) -> Any:
        pairs = zip(found[rule, decay], found[rule, 0.0], strict=True)
        return interval([own["norm"] / without["norm"] for own, without in pairs])

    rows: list[list[Any]] = []
    for (rule, decay), ones in found.items():
        loss, shrunk = interval([one["loss"] for one in ones]), shrinkage(rule, decay)
        rows.append([decay, rule, loss.mean, loss.half_width, shrunk.mean, shrunk.half_width, loss.n])
    # A rounding error is at most an ulp, 2^-7, each of steps x elements of them, with a variance of at most ulp^2 / 4.
    error = 2**-7 / 2 * (alone_steps / elements) ** 0.5 / 1.5
    checks = [
        Check(
            f"decay alone, {alone_steps} steps of 1e-4: SR keeps it on average",
            expected,
            alone["stochastic"],
            abs(alone["stochastic"] - expected) < 4 * error,
            error,
        ),
        Check("decay alone, to nearest in one write: it never happens", 1.0, alone["nearest"], alone["nearest"] == 1.0),
        Check("decay alone, torch.optim.AdamW in BF16: it never happens", 1.0, alone["torch"], alone["torch"] == 1.0),
    ]
    high = decays[-1]
    checks += [
        Check(
            f"in training, weight decay {high:g}: {rule} shrinks the weights as the master copy does, to 1 %",
            shrinkage("fp32", high).mean,
            shrinkage(rule, high).mean,
            abs(shrinkage(rule, high).mean - shrinkage("fp32", high).mean) < 0.01,
            required=False,
        )
        for rule in list(RULES)[1:]
    ]

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        left.bar(range(len(RULES)), [alone[rule] for rule in RULES], width=0.6)
        left.axhline(expected, color="black", linewidth=0.8, linestyle="--")
        left.set(ylabel=f"mean weight after {alone_steps} decays / before", ylim=(min(expected, 1) - 0.05, 1.02))
        for rule in RULES:
            shown = [shrinkage(rule, decay) for decay in decays]
            draw_intervals(right, range(len(decays)), shown, fmt="o-", ms=3, label=rule)
        left.set_xticks(range(len(RULES)), list(RULES))
        right.set_xticks(range(len(decays)), [f"{decay:g}" for decay in decays])
        right.set(xlabel="weight decay", ylabel="norm of matrices / without decay")
        right.legend()

    summary = f"""
Decay multiplies a weight by 1 - LR x weight decay: with LR {LR:g} and 0.1 by 0.9999, a change 40 times below half a
BF16 unit. Alone, with gradients of zero, {alone_steps} steps should leave {expected:.4f} of a weight. SR leaves
{alone["stochastic"]:.4f} on average, and both ways to round to nearest {alone["nearest"]:.4f} and {alone["torch"]:.4f}.

In a training the step moves the weight too, and a decay that is added to a step before one rounding is lost only as
often as the step is. The table has the norm of all matrices after {steps} steps over that without decay, for
{", ".join(f"**{rule}** ({text})" for rule, text in RULES.items())}.
"""
    columns = ["weight decay", "rule", "loss", "±", "norm / without decay", "±", "n"]
    return Report(
        summary=summary,
        checks=checks,
        tables=[Table("training", "After a training, 95 % intervals over seeds", columns, rows, documented=True)],
        figures=[Figure("weight_decay", "Decay alone (dashed: exact), and in a training.", draw, (6.4, 2.8))],
    )


EXPERIMENT = Experiment(name="weight_decay", title="Weight decay of BF16 weights", page="ablations", run=run)
