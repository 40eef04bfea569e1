# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""A GPT whose padded vocabulary is seen by nobody.

Tensor-parallel ranks hold equally many rows of the embedding, so it is padded to a number that depends on the layout. A
row of padding would have a logit as a token has, 0 if its weights are 0, and take part in the softmax: the loss would
depend on the layout.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_model import GPTModel


def pad_vocab_size(vocab_size: int, *, divisible_by: int, tensor_parallel_size: int) -> int:
    """Return `vocab_size` rounded up to a multiple of `divisible_by` * `tensor_parallel_size`."""
    multiple = divisible_by * tensor_parallel_size
    return -(-vocab_size // multiple) * multiple


class PaddedGPT(GPTModel):  # type: ignore[misc]
    """Megatron-core's GPTModel, in whose loss the logits of padding are -inf, and from whose logits they are cut.

    Under every tensor- and pipeline-parallel layout the loss and the gradients are those of the model without padding.

    Args:
        config: Megatron-core's TransformerConfig.
        layer_spec: The specification of its layers.
        num_tokens: Rows of the vocabulary that are tokens; those after them are padding.
        **kwargs: GPTModel's other arguments; ``vocab_size`` counts the padding.
    """

    def __init__(self, config: Any, layer_spec: Any, *, num_tokens: int, **kwargs: Any) -> None:
        super().__init__(config, layer_spec, **kwargs)
        self.num_tokens = num_tokens

    def forward(self, *args: Any, labels: Any = None, **kwargs: Any) -> torch.Tensor:
        """Return the loss of every token with `labels`, the logits of all tokens without.

        Args:
            *args: GPTModel's, token ids first: shape (b, s).
            labels: Ids of the tokens to predict, shape (b, s).
            **kwargs: GPTModel's.

        Returns:
            On the last pipeline stage losses, shape (b, s), or logits on every tensor-parallel rank, shape
            (b, s, num_tokens); before it hidden states.
        """
        if labels is None:
            kwargs["runtime_gather_output"] = True
        output: torch.Tensor = super().forward(*args, labels=labels, **kwargs)
        return output[..., : self.num_tokens] if labels is None and self.post_process else output

    def compute_language_model_loss(self, labels: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Return the cross entropy over the tokens, shape (b, s).

        Args:
            labels: Shape (b, s).
            logits: Shape (s, b, this rank's columns); the padding's become -inf.
        """
        columns = logits.shape[-1]
        first = parallel_state.get_tensor_model_parallel_rank() * columns
        num_hidden = min(max(first + columns - self.num_tokens, 0), columns)
        if num_hidden:
            logits = _HideLast.apply(logits, num_hidden)  # type: ignore[no-untyped-call]
        losses: torch.Tensor = super().compute_language_model_loss(labels, logits)
        return losses


class _HideLast(torch.autograd.Function):
    """Sets the last columns to -inf in place, where masked_fill would copy all logits, forward and backward."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, num_hidden: int) -> torch.Tensor:
        ctx.mark_dirty(logits)
        logits[..., logits.shape[-1] - num_hidden :] = -torch.inf
        return logits

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        # The cross entropy's gradient is softmax less target: 0 in these columns as it comes.
        return grads[0], None
