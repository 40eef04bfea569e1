# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The memory of fused attention on the meta device, where the real kernels do not run."""

from __future__ import annotations

from typing import Any

import torch


class _Fused(torch.autograd.Function):
    """Keeps queries, keys, values, the result and one FP32 number a row, and no scores.

    Source: Dao et al., FlashAttention (arXiv 2205.14135), algorithms 2 and 4; Transformer Engine's fused attention
    keeps the same.
    """

    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        length, batch, heads, _ = query.shape
        result = torch.empty_like(query, memory_format=torch.contiguous_format)
        log_sums = torch.empty(batch, heads, length, dtype=torch.float32, device=query.device)
        ctx.save_for_backward(query, key, value, result, log_sums)
        return result.view(length, batch, -1)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, ...]:
        query, key, value, _, _ = ctx.saved_tensors
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


class FusedAttention(torch.nn.Module):
    """Takes the place of Megatron-core's DotProductAttention."""

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        """Return a result of the right shape, (s, b, heads * width), from inputs of shape (s, b, heads, width)."""
        if torch.is_autocast_enabled("cpu"):
            query, key, value = query.bfloat16(), key.bfloat16(), value.bfloat16()
        result: torch.Tensor = _Fused.apply(query, key, value)  # type: ignore[no-untyped-call]
        return result


def fuse_attention_(gpt: Any) -> None:
    """Exchange the attention of every layer of `gpt`, whose core has no weights."""
    for layer in gpt.decoder.layers:
        layer.self_attention.core_attention = FusedAttention()
