# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""How long a step takes, by a simple model that has not been fitted to GPUs; :func:`describe_model` states it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nemo_sr.models.architectures import ARCHITECTURES

if TYPE_CHECKING:  # Megatron-core takes seconds to import, and --help does without
    from nemo_sr.planning.planner import Planner
    from nemo_sr.planning.stage import Layout
    from nemo_sr.training.regimes import Regime


@dataclass(frozen=True)
class Gpu:
    """What a data sheet says of a GPU, in units of a second."""

    bf16_flops: float
    fp32_flops: float
    memory_bytes: float
    node_bytes: float
    """Each way to the GPUs of its node."""

    network_bytes: float
    """Each way to other nodes: its share of the node's network."""


GPUS = {
    "a100": Gpu(312e12, 19.5e12, 2.0e12, 300e9, 25e9),
    "h100": Gpu(989e12, 67e12, 3.35e12, 450e9, 50e9),
}

EFFICIENCY = 0.6
"""Share of the peak rate that large matrix products reach."""

HALF_ROWS = 512
"""Rows of the activations at which a product reaches half of that; likewise HALF_COLUMNS of a rank's hidden size."""

HALF_COLUMNS = 256

TOUCHES = 3
"""Times that a value moves to or from memory: written once, read twice."""

LAUNCH_SECONDS = 5e-6
"""The least time for an operation."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of an optimizer step and what it is made of, on the slowest pipeline stage."""

    compute: float
    """All micro batches: matrix products, memory traffic, operations too small to fill a GPU."""

    tensor_parallel: float
    """Exchange among tensor-parallel ranks."""

    pipeline: float
    """Idle stages at the start and end of a step, and sending to the next stage."""

    data_parallel: float
    """Sum of the gradients, and gathering of the weights."""

    optimizer: float
    """The step itself."""

    @property
    def total(self) -> float:
        """All of it: nothing overlaps."""
        return self.compute + self.tensor_parallel + self.pipeline + self.data_parallel + self.optimizer


def estimate_step(
    planner: Planner, layout: Layout, regime: Regime, grad_dtype: str, *, gpu: Gpu, gpus_per_node: int
) -> StepTime:
    """Estimate a step's time.

    Args:
        planner: The model.
        layout: The layout.
        regime: The strategy.
        grad_dtype: Type in which gradients are summed.
        gpu: What it runs on.
        gpus_per_node: GPUs that are joined by the faster links; tensor-parallel ranks are neighbours, then
            data-parallel ones.
    """
    times = [
        _stage_time(planner, layout, stage, regime, grad_dtype, gpu=gpu, gpus_per_node=gpus_per_node)
        for stage in layout.end_stages
    ]
    return max(times, key=lambda time: time.total)


def _stage_time(
    planner: Planner, layout: Layout, stage: int, regime: Regime, grad_dtype: str, *, gpu: Gpu, gpus_per_node: int
) -> StepTime:
    rank = planner.rank_bytes(layout, stage, regime, grad_dtype)
    one, tp, pp, dp = rank.one_pass, layout.tensor_parallel, layout.pipeline_parallel, layout.data_parallel
    model = planner.facts.model
    rows, columns = layout.micro_batch * model.encoder_seq_length, model.hidden_size / tp
    share = EFFICIENCY * rows / (rows + HALF_ROWS) * columns / (columns + HALF_COLUMNS)
    rate = share * (gpu.fp32_flops if regime.weights == "fp32" and not regime.autocast else gpu.bf16_flops)
    flops = one.flops + (_attention_flops(planner, layout) if planner.facts.fused_attention else 0.0)
    busy = max(flops / rate + TOUCHES * one.written / gpu.memory_bytes, LAUNCH_SECONDS * one.num_operations)

    def link(span: int) -> float:
        return gpu.node_bytes if span <= gpus_per_node else gpu.network_bytes

    exchange = one.exchanged * (tp - 1) / tp / link(tp)
    send = one.received / link(tp * dp * pp)
    num_micro_batches = planner.num_micro_batches(layout)
    state = rank.state
    return StepTime(
        compute=num_micro_batches * busy,
        tensor_parallel=num_micro_batches * exchange,
        pipeline=(pp - 1) * (busy + exchange) + num_micro_batches * send,
        data_parallel=(state.gradients + state.weights) * (dp - 1) / dp / link(tp * dp),
        # Gradients are read; moments, masters and the weights that are stepped are read and written.
        optimizer=(2 * (state.moments + state.masters) + (state.gradients + 2 * state.weights) / dp) / gpu.memory_bytes,
    )


def _attention_flops(planner: Planner, layout: Layout) -> float:
    """Return the FLOPs of a stage's fused attention for a micro batch; backward it makes the scores again."""
    model = planner.facts.model
    length = model.encoder_seq_length
    window = model.window_size or ARCHITECTURES[model.architecture].window_size
    seen = length / 2 if window is None else (length / 2 + min(window, length / 2)) / 2
    forward = 4 * layout.micro_batch * length * seen * model.hidden_size / layout.tensor_parallel
    times = 4.5 if layout.recompute is not None else 3.5
    return float(times * forward * model.num_layers / layout.pipeline_parallel)


def describe_model() -> str:
    """Return the model in words, for ``--help``."""
    return f"""\
The estimate is that of the slowest pipeline stage. Nothing overlaps, and nothing is fitted to a GPU. The sum of
  compute          for each micro batch the larger of
                   (a) FLOPs of matrix products / rate + {TOUCHES} x bytes of all tensors it makes / memory bandwidth
                   (b) {LAUNCH_SECONDS * 1e6:.0f} us x its operations
                   FLOPs, bytes and operations are counted in the pass itself, recomputation included;
                   rate = {EFFICIENCY} x peak x rows / (rows + {HALF_ROWS}) x columns / (columns + {HALF_COLUMNS}),
                   where rows = tokens of a micro batch, columns = hidden size / TP
  tensor parallel  bytes exchanged, an all-reduce counted twice, x (TP - 1) / TP / link
  pipeline         PP - 1 micro batches of idling; what comes from other stages / link
  data parallel    (bytes of gradients + bytes of weights) x (DP - 1) / DP / link
  optimizer        its reads and writes / memory bandwidth
A link is the node's where all its ranks are in one node (they are placed TP, then DP, then PP), else the network's.
{_describe_gpus()}"""


def _describe_gpus() -> str:
    return "\n".join(
        f"{name}: BF16 {gpu.bf16_flops / 1e12:.0f} and FP32 {gpu.fp32_flops / 1e12:g} TFLOP/s, "
        f"memory {gpu.memory_bytes / 1e12:g} TB/s, node {gpu.node_bytes / 1e9:.0f} GB/s, "
        f"network {gpu.network_bytes / 1e9:.0f} GB/s"
        for name, gpu in GPUS.items()
    )
