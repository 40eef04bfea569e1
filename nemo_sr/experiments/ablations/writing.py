# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""AdamW on BF16 weights with other ways to write the weight than nemo_sr offers. For comparison only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nemo_sr.noise import EXP_AVG_SQ_STREAM, WEIGHT_STREAM, noise16_from_key
from nemo_sr.optimizer import AdamWSR
from nemo_sr.rounding import round_nearest, round_stochastic
from nemo_sr.update import ParamShard, StepOptions, adamw_float32, chunks

WRITES = {
    "fp32": 14,
    "stochastic": 6,
    "bits_4": 6,
    "bits_2": 6,
    "compensated": 8,
    "nearest": 6,
}
"""Bytes of weight and state for a parameter, by the way to write."""


class AdamWWritten(AdamWSR):
    """AdamWSR with another write of the weight; all else is the same, moments and their noise included.

    Args:
        *args: As in AdamWSR.
        write: "fp32": weight and moments live in FP32, and the BF16 weight is their copy. "stochastic": AdamWSR's.
            "bits_N": stochastic with the highest N of the 16 noise bits, the others zero. "compensated": to nearest,
            and what that leaves out is kept in BF16 and added in the next step (Kahan). "nearest".
        **kwargs: As in AdamWSR.
    """

    def __init__(self, *args: Any, write: str, **kwargs: Any) -> None:
        if write not in WRITES:
            raise ValueError(f"write must be one of {', '.join(WRITES)}; got {write!r}. Choose one of them.")
        super().__init__(*args, **kwargs)
        self._write = write
        self._kept: dict[int, tuple[Tensor, ...]] = {}
        if write != "stochastic":
            self._backend = self._step_

    def _step_(self, shards: Sequence[ParamShard], options: StepOptions) -> None:
        for shard in shards:
            if self._write == "fp32":
                tensors = (shard.weight, shard.exp_avg, shard.exp_avg_sq)
                kept = self._kept.setdefault(shard.key, tuple(tensor.float() for tensor in tensors))
                weight, exp_avg, exp_avg_sq = kept
                for tensor, new in zip(
                    kept, adamw_float32(weight, shard.grad, exp_avg, exp_avg_sq, options.scalars), strict=True
                ):
                    tensor.copy_(new)
                shard.weight.copy_(round_nearest(weight))
            else:
                self._step_bf16_(shard, options)

    def _step_bf16_(self, shard: ParamShard, options: StepOptions) -> None:
        for here, index in chunks(shard.layouts, shard.weight.device):
            tensors = (shard.weight[here], shard.grad[here], shard.exp_avg[here], shard.exp_avg_sq[here])
            w, m, v = adamw_float32(*tensors, options.scalars)
            shard.exp_avg[here] = round_nearest(m)
            noise = noise16_from_key(shard.key, options.step, EXP_AVG_SQ_STREAM, index)
            shard.exp_avg_sq[here] = round_stochastic(v, noise)
            if self._write == "nearest":
                shard.weight[here] = round_nearest(w)
            elif self._write == "compensated":
                zeros = (torch.zeros_like(shard.weight),)
                (left,) = self._kept.setdefault(shard.key, zeros)
                w = w + left[here].float()
                shard.weight[here] = round_nearest(w)
                left[here] = round_nearest(w - shard.weight[here].float())
            else:
                num_bits = int(self._write.removeprefix("bits_"))
                noise = noise16_from_key(shard.key, options.step, WEIGHT_STREAM, index)
                shard.weight[here] = round_stochastic(w, noise & (0xFFFF << (16 - num_bits)))
