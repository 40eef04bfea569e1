# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/stochastic_rounding.svg: python tests/make_rounding_figure.py."""

from pathlib import Path

import matplotlib
import torch

from nemo_sr import noise16, round_stochastic

TARGET = Path(__file__).parent.parent / "docs/stochastic_rounding.svg"
UPDATE, NUM_STEPS, NUM_WEIGHTS, NUM_SHOWN = 0.001, 100, 10_000, 3


def walk() -> tuple[torch.Tensor, torch.Tensor]:
    """Return a weight of 1 after each update, rounded to nearest and, of 10,000 of them, stochastically."""
    nearest, stochastic = torch.ones(1, dtype=torch.bfloat16), torch.ones(NUM_WEIGHTS, dtype=torch.bfloat16)
    walks = [(nearest, stochastic)]
    for step in range(1, NUM_STEPS + 1):
        noise = noise16(0, step, 0, "w", torch.arange(NUM_WEIGHTS))
        nearest, stochastic = nearest + UPDATE, round_stochastic(stochastic.float() + UPDATE, noise)
        walks.append((nearest, stochastic))
    return torch.stack([a.float() for a, _ in walks]), torch.stack([b.float() for _, b in walks])


def main() -> None:
    """Draw the walks."""
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "nemo_sr", "font.size": 11})
    from matplotlib import pyplot

    nearest, stochastic = walk()
    figure, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
    steps = range(NUM_STEPS + 1)
    axes.set_yticks([1 + i / 128 for i in range(19)], minor=True)
    axes.grid(axis="y", which="minor", color="0.9")
    for weight in range(NUM_SHOWN):
        label = f"rounded stochastically: {NUM_SHOWN} weights" if weight == 0 else None
        axes.step(steps, stochastic[:, weight], where="post", color="tab:cyan", linewidth=1, label=label)
    axes.plot(steps, stochastic.mean(dim=1), color="tab:blue", linewidth=3, label=f"mean of {NUM_WEIGHTS:,} of them")
    axes.plot(steps, [1 + UPDATE * step for step in steps], "k--", linewidth=1, label="FP32")
    axes.plot(steps, nearest, color="tab:red", linewidth=3, label="rounded to nearest")
    axes.set(xlabel="updates of 0.001", ylabel="weight (grey lines: BF16's values)", xlim=(0, NUM_STEPS))
    axes.legend(frameon=False, loc="upper left")
    figure.savefig(TARGET, metadata={"Date": None})


if __name__ == "__main__":
    main()
