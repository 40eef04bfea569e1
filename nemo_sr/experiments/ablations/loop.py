# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""A training loop of a few lines, on the tokens of the sample corpus."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from torch import Tensor
from torch.optim import Optimizer

from nemo_sr.experiments.ablations.model import SmallGPT, Text
from nemo_sr.experiments.strategies.corpora import digest_of, prepare

CORPORA = Path("data") / "lab"
BATCH = 8
BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.1
SEQUENCES = 128
"""Of the validation."""

QUICK_MB = 0.5
"""Of the sample corpus in the quick form."""


def sample_tokens(quick: bool) -> str:
    """Make the tokens if they are not there, and return their digest: a setting of every part that reads them."""
    return digest_of(_prefix(quick))


@cache
def _prefix(quick: bool) -> Path:
    return prepare("sample", CORPORA, size_mb=QUICK_MB if quick else None)


@cache
def read_text(digest: str) -> Text:
    """Return the tokens with this digest.

    Raises:
        RuntimeError: they are not there.
    """
    for quick in (True, False):
        if digest_of(_prefix(quick)) == digest:
            return Text(_prefix(quick))
    raise RuntimeError(f"the sample corpus must have tokens with the digest {digest}; it has others. Start anew.")


def rate(step: int, steps: int, lr: float) -> float:
    """Return the learning rate of a step, 0 for the first: a tenth of the steps up to ``lr``, then a cosine to 0."""
    warmup = max(1, steps // 10)
    if step < warmup:
        return lr * (step + 1) / warmup
    return lr * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))


def set_rate(optimizer: Optimizer, lr: float) -> None:
    """Give all groups of an optimizer a learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def fit(
    model: SmallGPT,
    optimizer: Optimizer,
    batches: Iterator[Tensor],
    *,
    steps: int,
    lr: float,
    before_step: Callable[[int], None] = lambda step: None,
) -> None:
    """Train a model.

    Args:
        model: It.
        optimizer: Of its parameters.
        batches: Training batches.
        steps: Optimizer steps.
        lr: Highest learning rate, see :func:`rate`.
        before_step: Called with the step, 0 for the first, when there are gradients.
    """
    for step in range(steps):
        optimizer.zero_grad()
        model(next(batches)).backward()
        before_step(step)
        set_rate(optimizer, rate(step, steps, lr))
        optimizer.step()
