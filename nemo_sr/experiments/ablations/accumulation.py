# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Gradients of many micro batches summed in BF16 or in FP32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nemo_sr.experiments import Check, Experiment, Figure, Lab, Report, Table
from nemo_sr.experiments.ablations.loop import (
    BETAS,
    SEQUENCES,
    WEIGHT_DECAY,
    rate,
    read_text,
    sample_tokens,
    set_rate,
)
from nemo_sr.experiments.ablations.model import make_model
from nemo_sr.experiments.strategies.statistics import draw_intervals, interval
from nemo_sr.optimizer import AdamWSR

LR = 3e-3
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def train(
    *, tokens: str, dtype: str, micro_batches: int, batch: int, lr: float, steps: int, sequences: int, seed: int
) -> dict[str, float]:
    """Train with AdamWSR on sums of gradients.

    Args:
        tokens: Digest of the text.
        dtype: Of the sum, "bf16" or "fp32"; each micro batch's gradient is BF16.
        micro_batches: Into which each batch is cut.
        batch: Sequences in a step.
        lr: Highest learning rate.
        steps: Optimizer steps.
        sequences: Of the validation.
        seed: Of weights, batches and noise.

    Returns:
        "loss"; "error", the distance of the sum from that in FP64 over the latter's norm, on average over the steps.
    """
    text = read_text(tokens)
    model = make_model(text.vocab_size, seed)
    options: dict[str, Any] = {"betas": BETAS, "weight_decay": WEIGHT_DECAY, "seed": seed}
    optimizer = AdamWSR(model.named_parameters(), **options)
    batches, params = text.batches(batch, seed), list(model.parameters())
    errors = []
    for step in range(steps):
        sums = [torch.zeros_like(param, dtype=DTYPES[dtype]) for param in params]
        exact = [torch.zeros_like(param, dtype=torch.float64) for param in params]
        for micro in next(batches).chunk(micro_batches):
            optimizer.zero_grad()
            (model(micro) / micro_batches).backward()
            for param, own, true in zip(params, sums, exact, strict=True):
                assert param.grad is not None
                own += param.grad
                true += param.grad
        errors.append(_norm([own.double() - true for own, true in zip(sums, exact, strict=True)]) / _norm(exact))
        optimizer.zero_grad()
        for param, own in zip(params, sums, strict=True):
            param.decoupled_grad = own  # type: ignore[attr-defined]
        set_rate(optimizer, rate(step, steps, lr))
        optimizer.step()
    return {"loss": text.validation_loss(model, sequences), "error": sum(errors) / len(errors)}


def _norm(tensors: list[Tensor]) -> float:
    return float(sum(tensor.square().sum().item() for tensor in tensors) ** 0.5)


def run(lab: Lab) -> Report:
    """Compute the report."""
    tokens = sample_tokens(lab.quick)
    counts = lab.choose(quick=[1, 4], full=[1, 8, 64])
    seeds = lab.choose(quick=[1], full=[1, 2, 3])
    steps, sequences = lab.choose(quick=3, full=20), lab.choose(quick=16, full=SEQUENCES)
    settings = {"tokens": tokens, "batch": counts[-1], "lr": LR, "steps": steps, "sequences": sequences}
    found = {
        (dtype, count): [lab.part(train, dtype=dtype, micro_batches=count, seed=seed, **settings) for seed in seeds]
        for count in counts
        for dtype in DTYPES
    }
    errors = {key: interval([one["error"] for one in ones]) for key, ones in found.items()}
    gaps = {
        count: interval(
            [b["loss"] - f["loss"] for b, f in zip(found["bf16", count], found["fp32", count], strict=True)]
        )
        for count in counts
    }
    rows: list[list[Any]] = []
    for (dtype, count), ones in found.items():
        loss, error = interval([one["loss"] for one in ones]), errors[dtype, count]
        rows.append([count, dtype, loss.mean, loss.half_width, error.mean, error.half_width, loss.n])
    most = counts[-1]
    checks = [
        Check(
            "one micro batch: nothing is summed, so nothing is lost",
            0.0,
            errors["bf16", 1].mean,
            errors["bf16", 1].mean == 0.0,
        ),
        Check(
            f"{most} micro batches in FP32: error of the sum",
            "< 1e-6",
            errors["fp32", most].mean,
            errors["fp32", most].mean < 1e-6,
        ),
        Check(
            f"the sum of {most} in BF16 has an error that grows with their number",
            f"> {errors['bf16', counts[-2]].mean:.2g}",
            errors["bf16", most].mean,
            errors["bf16", most].mean > errors["bf16", counts[-2]].mean,
            required=False,
        ),
        *(
            Check(
                f"summing {count} in BF16 costs loss (interval above 0)",
                "> 0",
                gaps[count].mean,
                gaps[count].is_above_zero,
                required=False,
            )
            for count in counts[1:]
        ),
    ]

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        draw_intervals(left, counts, [errors["bf16", count] for count in counts], fmt="o-")
        draw_intervals(right, counts, [gaps[count] for count in counts], fmt="o-")
        right.axhline(0, color="gray", linewidth=0.8)
        for axes in (left, right):
            axes.set(xscale="log", xlabel="micro batches in a step")
            axes.set_xticks(counts, [str(count) for count in counts])
        left.set_ylabel("error of the BF16 sum / norm")
        right.set_ylabel("loss, BF16 sum - FP32 sum (nats)")

    words = "; ".join(
        f"{count}: error {errors['bf16', count].mean:.2%}, loss {gaps[count]} above FP32" for count in counts
    )
    summary = f"""
Each step has {most} sequences, cut into micro batches whose BF16 gradients are summed in BF16 or in FP32
(`optim.grad_dtype`), over {steps} steps of AdamWSR at LR {LR:g}. By the number of micro batches, in BF16: {words}.

The error is that of the sum alone, against FP64, relative to the gradient's norm. Cutting also changes how the products
of one micro batch are rounded, alike for both.
"""
    columns = ["micro batches", "sum in", "loss", "±", "error of the sum", "±", "n"]
    return Report(
        summary=summary,
        checks=checks,
        tables=[
            Table(
                "accumulation",
                "Validation loss in nats after the last step, 95 % intervals over seeds",
                columns,
                rows,
                documented=True,
            )
        ],
        figures=[Figure("accumulation", "Error of a gradient summed in BF16, and its cost.", draw, (6.4, 2.8))],
    )


EXPERIMENT = Experiment(name="accumulation", title="Gradients summed in BF16 or FP32", page="ablations", run=run)
