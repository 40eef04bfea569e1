# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""A small language model and its data, for experiments that need many short trainings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

LENGTH = 64
WIDTH = 64
LAYERS = 2
HEADS = 4
VALIDATION_SHARE = 0.05
"""Of the tokens, at the end."""


class SmallGPT(nn.Module):
    """A GPT of torch's own layers: pre-norm, learned positions, tied embeddings.

    Args:
        vocab_size: Tokens.
    """

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, LAYERS, norm=nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        for param in self.parameters():
            if param.dim() == 2:
                nn.init.normal_(param, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats of predicting each token from those before it.

        Args:
            tokens: Shape (batch, LENGTH + 1), int64.

        Returns:
            A scalar, float32.
        """
        inputs, labels = tokens[:, :-1], tokens[:, 1:]
        hidden = self.tokens(inputs) + self.positions.weight
        mask = torch.full((LENGTH, LENGTH), float("-inf"), dtype=hidden.dtype).triu(1)
        hidden = self.layers(hidden, mask=mask, is_causal=True)
        logits = functional.linear(hidden, self.tokens.weight).float()
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def make_model(vocab_size: int, seed: int) -> SmallGPT:
    """Return the BF16 model of a seed; torch's own generator stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SmallGPT(vocab_size).bfloat16()


class Text:
    """A token file, cut into training and validation.

    Args:
        prefix: Without .bin and .idx; tokens of 16 bits.
    """

    def __init__(self, prefix: Path) -> None:
        tokens = torch.from_numpy(np.fromfile(f"{prefix}.bin", dtype=np.uint16).astype(np.int64))
        cut = int(len(tokens) * (1 - VALIDATION_SHARE))
        self.training, self.validation = tokens[:cut], tokens[cut:]
        self.vocab_size = -(-int(tokens.max() + 1) // 64) * 64

    def batches(self, batch: int, seed: int) -> Iterator[Tensor]:
        """Yield training batches without end, shape (batch, LENGTH + 1), int64."""
        generator = np.random.default_rng(seed)
        while True:
            starts = generator.integers(0, len(self.training) - LENGTH - 1, size=batch)
            yield torch.stack([self.training[start : start + LENGTH + 1] for start in starts])

    def validation_loss(self, model: SmallGPT, sequences: int) -> float:
        """Return a model's mean loss over the first so many sequences of the validation tokens."""
        size = LENGTH + 1
        rows = self.validation[: sequences * size].view(-1, size)
        with torch.no_grad():
            losses = [float(model(part)) * len(part) for part in torch.split(rows, 32)]
        return sum(losses) / len(rows)
