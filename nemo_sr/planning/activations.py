# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Bytes of activations, from a forward and a backward pass of the real Megatron model on the meta device.

Nothing here is a formula for a layer: the pass is run, and what is alive is counted. Every layer adds the same, and a
local one of GPT-Neo the same as the other local ones, so that two shallow models give the numbers of a deep one.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Any

import torch

from nemo_sr.megatron.cpu_platform import act_in_backward
from nemo_sr.megatron.meta_platform import meta_rank
from nemo_sr.planning.live_bytes import LiveBytes, MetaAutocast
from nemo_sr.planning.stage import Layout, ModelFacts, build_stage


@dataclass(frozen=True)
class Pass:
    """Forward and backward pass of one micro batch through a pipeline stage, in bytes."""

    saved: int
    """Alive between forward and backward pass."""

    layers_peak: int
    """The most until the backward pass has left the layers."""

    last_peak: int
    """The most after that, in the embedding."""

    buffers: int
    """Megatron-core's global memory buffer, which stays: gathered sequences, attention scores."""

    received: int
    """Activations and gradients from the neighbouring stages; also in the peaks."""

    received_activations: int
    """The former, also in `saved`."""

    written: int
    """Everything that was made."""

    num_operations: int
    """Operations that made something."""

    flops: int
    """Floating-point operations of matrix products, those of fused attention left out."""

    exchanged: int
    """Bytes of the tensors that tensor-parallel ranks exchange, an all-reduce counted twice."""

    @property
    def peak(self) -> int:
        """The most at any time."""
        return max(self.layers_peak, self.last_peak)


def trace_pass(
    facts: ModelFacts, layout: Layout, *, stage: int, num_layers: int, weights: torch.dtype, autocast: bool
) -> Pass:
    """Run one micro batch through a pipeline stage of a model with `num_layers` layers."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            meta_rank(
                tensor_parallel=layout.tensor_parallel,
                pipeline_parallel=layout.pipeline_parallel,
                data_parallel=layout.data_parallel,
                stage=stage,
            )
        )
        ddp = build_stage(facts, layout, num_layers=num_layers, weights=weights, grads=weights, autocast=autocast)
        if autocast:
            act_in_backward(stack, MetaAutocast)
            stack.enter_context(MetaAutocast())
        return _run(facts, layout, ddp, weights=weights, autocast=autocast)


def _run(facts: ModelFacts, layout: Layout, ddp: Any, *, weights: torch.dtype, autocast: bool) -> Pass:
    from megatron.core import parallel_state

    gpt = ddp.module
    batch, length = layout.micro_batch, facts.model.encoder_seq_length
    ids = torch.zeros(batch, length, dtype=torch.int64)
    params = list(gpt.parameters())
    held = [*params, *(param.main_grad for param in params), *gpt.buffers(), ids]
    peaks: list[int] = []

    def watch_gradient(module: Any, args: Any, output: torch.Tensor) -> None:
        output.register_hook(lambda grad: peaks.append(live.restart_peak()))  # type: ignore[no-untyped-call]

    with LiveBytes(held) as live:
        received = torch.empty(0)
        if gpt.pre_process:
            gpt.embedding.register_forward_hook(watch_gradient)
        else:
            rows = length // layout.tensor_parallel if layout.sequence_parallel else length
            received = torch.empty(rows, batch, facts.model.hidden_size, dtype=weights, requires_grad=True)
            gpt.set_input_tensor(received)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            output = ddp(ids, ids, None, labels=ids)
        buffers = parallel_state.get_global_memory_buffer().buffer
        held_after_forward = sum(buffer.nbytes for buffer in buffers.values())
        saved = live.now - held_after_forward
        grad = None
        if gpt.post_process:
            output = output.float().mean()
        else:
            grad = torch.empty_like(output)
        torch.autograd.backward(output, grad)
        last_peak = live.restart_peak()
        peaks.append(last_peak)
        size = sum(buffer.nbytes for buffer in buffers.values())
        return Pass(
            saved=saved,
            layers_peak=peaks[0] - size,
            last_peak=last_peak - size if gpt.pre_process else 0,
            buffers=size,
            received=received.nbytes + (0 if grad is None else grad.nbytes),
            received_activations=received.nbytes,
            written=live.written,
            num_operations=live.num_operations,
            flops=live.flops,
            exchanged=live.exchanged,
        )


def deepen(shallow: Pass, deeper: Pass, num_steps: int) -> Pass:
    """Return the pass of a stage that is deeper than `shallow` by `num_steps` times what `deeper` is."""

    def at(name: str) -> int:
        first, second = getattr(shallow, name), getattr(deeper, name)
        return int(first + num_steps * (second - first))

    return replace(shallow, **{name: at(name) for name in _DEEPENED})


_DEEPENED = ("saved", "layers_peak", "last_peak", "written", "num_operations", "flops", "exchanged")
