# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""How far a second moment that is rounded to nearest falls short, followed on a few weights at every step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nemo_sr.sampling import Draw
from nemo_sr.update import to_float32


class NearestMoment:
    """Two second moments of a few weights, fed with a run's gradients: one exact in FP32, one rounded to nearest.

    Both begin as the run's own. A run that resumes begins them anew, so that the shortfall grows again from 0 within
    some 1 / (1 - beta2) steps.

    Args:
        draw: Which weights.
        grads: Flat gradients of the shards; they must stay where they are, as Megatron's do.
        exp_avg_sq: Flat second moments of the shards.
        beta2: Decay of the second moment.
    """

    def __init__(self, draw: Draw, grads: Sequence[Tensor], exp_avg_sq: Sequence[Tensor], beta2: float) -> None:
        self._counts = draw.counts.double()
        self._exact = draw.take(exp_avg_sq).float()
        self._nearest = self._exact.bfloat16()
        self._decay, self._share = to_float32(beta2), to_float32(1 - beta2)
        self._buffers = _by_buffer(draw, grads)
        self._order = torch.cat([place for _, _, place in self._buffers]).argsort()

    def step(self, grad_scale: float | Tensor) -> None:
        """Take in the gradients of a step; a few operations, whatever the number of shards.

        Args:
            grad_scale: Their multiplier.
        """
        pieces = [buffer.index_select(0, index) for buffer, index, _ in self._buffers]
        grad = torch.cat(pieces).index_select(0, self._order).float() * grad_scale
        added = (grad * grad) * self._share
        self._exact = self._exact * self._decay + added
        self._nearest = (self._nearest.float() * self._decay + added).bfloat16()

    def sums(self) -> Tensor:
        """Return the sum of (exact - nearest) / the larger of them, and the number of weights. Shape (2,), float64."""
        exact, nearest = self._exact.double(), self._nearest.double()
        larger = torch.maximum(exact, nearest)
        counted = self._counts * (larger.isfinite() & (larger > 0))
        return torch.stack([(counted * (exact - nearest) / larger).where(counted > 0, 0.0).sum(), counted.sum()])


def _by_buffer(draw: Draw, tensors: Sequence[Tensor]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return each buffer that tensors are views of, the drawn elements' places in it, and their places in the draw."""
    parts: dict[tuple[int, torch.dtype], tuple[Tensor, list[Tensor], list[Tensor]]] = {}
    everyone = torch.arange(len(draw.positions), device=draw.positions.device)
    rows = zip(tensors, torch.split(draw.positions, draw.sizes), torch.split(everyone, draw.sizes), strict=True)
    for tensor, positions, places in rows:
        storage = tensor.untyped_storage()
        buffer = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage)
        _, indices, all_places = parts.setdefault((storage.data_ptr(), tensor.dtype), (buffer, [], []))
        indices.append(positions + int(tensor.storage_offset()))
        all_places.append(places)
    return [(buffer, torch.cat(indices), torch.cat(places)) for buffer, indices, places in parts.values()]
