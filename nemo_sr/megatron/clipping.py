# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Gradient norm in FP64, and clipping folded into the step: gradients are read once and never rewritten."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from megatron.core.transformer.module import param_is_not_shared

# Elements that are converted to FP64 at a time: 32 MiB.
_PIECE = 1 << 22


class FoldedClipping:
    """Replaces norm, clipping and step of a MegatronOptimizer; put it before that class among the bases.

    Megatron's own clipping rewrites BF16 gradients (an extra pass and an extra rounding), and without Transformer
    Engine its norm of BF16 gradients is itself rounded to BF16. A norm that is not finite, or above Megatron's
    grad_norm_skip_threshold where there is one, skips the step; every rank sees the same norm, so all skip alike.
    """

    def _parts(self) -> list[Any]:
        return list(getattr(self, "chained_optimizers", [self]))

    @torch.no_grad()
    def get_grad_norm(self) -> float:
        """Return the 2-norm of all gradients, replicas counted once. Collective."""
        # FP64, so that the layout does not show: the order of summation moves the result by 1e-16, and the
        # multiplier made from it is rounded to FP32.
        by_group: dict[int, tuple[Any, torch.Tensor]] = {}
        for part in self._parts():
            group = part.get_grad_stats_parallel_group()
            if id(group) not in by_group:
                total = torch.zeros((), dtype=torch.float64, device=torch.cuda.current_device())
                by_group[id(group)] = (group, total)
            for grad in _grads_for_norm(part):
                for piece in grad.detach().view(-1).split(_PIECE):
                    by_group[id(group)][1].add_(torch.linalg.vector_norm(piece, dtype=torch.float64) ** 2)
        squares = 0.0
        for group, total in by_group.values():
            torch.distributed.all_reduce(total, group=group)
            squares += total.item()
        return math.sqrt(squares)

    def clip_grad_norm(self, clip_grad: float) -> float:
        """Return the gradients' norm, and have the next step scale them down to `clip_grad`. Collective."""
        norm = self.get_grad_norm()
        for part in self._parts():
            _scale_next_step(part, norm, clip_grad)
        return norm

    @torch.no_grad()
    def step(self) -> tuple[bool, float | None, float | None]:
        """Step all optimizers. Collective.

        Returns:
            Whether the weights were updated, the gradients' norm, and the number of zeros among the gradients (None
            unless the configuration's log_num_zeros_in_grad asks for it).
        """
        if self.prepare_grads():  # type: ignore[attr-defined]
            return False, None, None
        norm = self.get_grad_norm()
        limits = [getattr(part.config, "grad_norm_skip_threshold", math.inf) for part in self._parts()]
        if not math.isfinite(norm) or norm > min(limits):
            return False, norm, None
        for part in self._parts():
            if part.config.clip_grad > 0:
                _scale_next_step(part, norm, part.config.clip_grad)
        zeros = self.count_zeros() if self.config.log_num_zeros_in_grad else None  # type: ignore[attr-defined]
        return self.step_with_ready_grads(), norm, zeros  # type: ignore[attr-defined]


def counted_parameters(part: Any) -> Iterator[torch.Tensor]:
    """Yield the parameters that a link steps, except those that another rank counts.

    Tensor-parallel ranks hold copies of norms and some biases, the last pipeline stage one of tied embeddings.
    """
    is_first = part.tp_group.rank() == 0
    for param in part.get_parameters():
        if (getattr(param, "tensor_model_parallel", False) or is_first) and param_is_not_shared(param):
            yield param


def _grads_for_norm(part: Any) -> Iterator[Any]:
    grads = (getattr(param, "decoupled_grad", None) for param in counted_parameters(part))
    return (grad for grad in grads if grad is not None)


def _scale_next_step(part: Any, norm: float, max_norm: float) -> None:
    if not getattr(part, "is_stub_optimizer", False):
        part.optimizer.grad_scale = min(1.0, max_norm / (norm + 1e-6))
