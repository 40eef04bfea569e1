# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Two replicas with and without shared noise: how far they drift apart, and what it costs."""

from __future__ import annotations

from typing import Any

import torch

from nemo_sr.experiments import Check, Experiment, Figure, Lab, Report, Table
from nemo_sr.experiments.ablations.loop import (
    BATCH,
    BETAS,
    SEQUENCES,
    WEIGHT_DECAY,
    rate,
    read_text,
    sample_tokens,
    set_rate,
)
from nemo_sr.experiments.ablations.model import SmallGPT, make_model
from nemo_sr.experiments.strategies.statistics import interval
from nemo_sr.optimizer import AdamWSR

LR = 3e-3
POINTS = 20
"""Of the drift's curve."""


def train(*, tokens: str, shared: bool, lr: float, steps: int, sequences: int, seed: int) -> dict[str, Any]:
    """Train two replicas, each on its half of the batch, with gradients averaged as by data parallelism.

    Args:
        tokens: Digest of the text.
        shared: Whether both have the same ``seed`` of the noise.
        lr: Highest learning rate.
        steps: Optimizer steps.
        sequences: Of the validation.
        seed: Of weights and batches.

    Returns:
        The losses of both replicas and of their mean; and, over steps, the root mean square of what they differ by,
        over that of the weights.
    """
    text = read_text(tokens)
    models = [make_model(text.vocab_size, seed) for _ in range(2)]
    options: dict[str, Any] = {"betas": BETAS, "weight_decay": WEIGHT_DECAY}
    optimizers = [
        AdamWSR(model.named_parameters(), seed=seed if shared else 1000 * seed + rank, **options)
        for rank, model in enumerate(models)
    ]
    batches = text.batches(BATCH, seed)
    drift = []
    for step in range(steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
            set_rate(optimizer, rate(step, steps, lr))
        for model, half in zip(models, next(batches).chunk(2), strict=True):
            model(half).backward()
        for params in zip(*(model.parameters() for model in models), strict=True):
            mean = torch.stack([param.grad for param in params]).mean(0)
            for param in params:
                param.grad = mean.clone()
        for optimizer in optimizers:
            optimizer.step()
        if (step + 1) % max(1, steps // POINTS) == 0:
            drift.append([step + 1, _distance(*models)])
    losses = [text.validation_loss(model, sequences) for model in models]
    with torch.no_grad():
        for own, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
            own.copy_((own.float() + other.float()) / 2)
    return {"losses": losses, "mean_model": text.validation_loss(models[0], sequences), "drift": drift}


def _distance(one: SmallGPT, other: SmallGPT) -> float:
    pairs = [(a.double(), b.double()) for a, b in zip(one.parameters(), other.parameters(), strict=True)]
    apart = sum((a - b).square().sum().item() for a, b in pairs)
    return float((apart / sum(a.square().sum().item() for a, _ in pairs)) ** 0.5)


def run(lab: Lab) -> Report:
    """Compute the report."""
    tokens = sample_tokens(lab.quick)
    seeds = lab.choose(quick=[1], full=[1, 2, 3])
    steps, sequences = lab.choose(quick=10, full=200), lab.choose(quick=16, full=SEQUENCES)
    settings = {"tokens": tokens, "lr": LR, "steps": steps, "sequences": sequences}
    found = {
        shared: [lab.part(train, shared=shared, seed=seed, **settings) for seed in seeds] for shared in (True, False)
    }
    apart = {shared: interval([one["drift"][-1][1] for one in ones]) for shared, ones in found.items()}
    cost = interval(
        [
            sum(unshared["losses"]) / 2 - sum(shared["losses"]) / 2
            for shared, unshared in zip(found[True], found[False], strict=True)
        ]
    )
    rows: list[list[Any]] = []
    for shared, ones in found.items():
        loss = interval([sum(one["losses"]) / 2 for one in ones])
        mean_model = interval([one["mean_model"] for one in ones])
        label = "shared" if shared else "not shared"
        rows.append([label, loss.mean, loss.half_width, mean_model.mean, apart[shared].mean, loss.n])
    checks = [
        Check(
            "replicas that share the noise hold the same bits at the end: distance",
            0.0,
            apart[True].mean,
            apart[True].mean == 0.0,
        ),
        Check("replicas that do not share it drift apart: distance", "> 0", apart[False].mean, apart[False].mean > 0.0),
        Check(
            "not sharing costs loss (interval of the difference above 0)",
            "> 0",
            cost.mean,
            cost.is_above_zero,
            required=False,
        ),
    ]

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for seed, one in zip(seeds, found[False], strict=True):
            axes.plot(*zip(*one["drift"], strict=True), label=f"not shared, seed {seed}")
        axes.plot(*zip(*found[True][0]["drift"], strict=True), color="gray", label="shared")
        axes.set(xlabel="step", ylabel="distance of the replicas / norm of the weights")
        axes.legend()

    summary = f"""
Two replicas train on half of each batch and average their gradients, as plain data parallelism does; each steps its
own weights with SR. With one seed for the noise they stay equal to the bit. With two, each keeps its own rounding
errors: after {steps} steps they are {apart[False].mean:.3%} of the weights' norm apart. The loss of a replica less
that with shared noise is {cost} nats (paired by seed).

A distributed optimizer that steps each weight on one rank only, and sends it to the others, cannot drift: there sharing
matters for replicas beyond it, and for weights that are replicated over tensor or pipeline parallelism.
"""
    columns = ["noise", "loss", "±", "loss of the mean model", "distance / norm", "n"]
    return Report(
        summary=summary,
        checks=checks,
        tables=[
            Table(
                "replicas",
                "Validation loss in nats after the last step, 95 % intervals over seeds",
                columns,
                rows,
                documented=True,
            )
        ],
        figures=[Figure("noise_sharing", "Distance of two replicas with averaged gradients.", draw)],
    )


EXPERIMENT = Experiment(
    name="noise_sharing", title="Replicas that share the rounding noise, or do not", page="ablations", run=run
)
