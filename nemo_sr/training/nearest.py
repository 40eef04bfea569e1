# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The paper's plain BF16 baseline: AdamW in BF16 without a master copy, everything rounded to nearest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from nemo_sr.optimizer import AdamWSR
from nemo_sr.rounding import round_nearest
from nemo_sr.update import CHUNK, ParamShard, StepOptions, adamw_float32, require_gradual_underflow


class AdamWBF16(AdamWSR):
    """AdamWSR with nearest rounding where the weight and the moments are written, for comparison only.

    Small updates are lost: one below half a unit in the last place of its weight changes nothing. State is 4 bytes a
    parameter.

    Args:
        *args: As in AdamWSR.
        **kwargs: As in AdamWSR; seed and roundings have no effect.

    Source:
        arXiv 2502.20566, the strategy "BF16".
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._backend = _step_to_nearest_


def _step_to_nearest_(shards: Sequence[ParamShard], options: StepOptions) -> None:
    if any(shard.weight.device.type == "cpu" for shard in shards):
        require_gradual_underflow()
    for shard in shards:
        targets = (shard.weight, shard.exp_avg, shard.exp_avg_sq)
        for begin in range(0, shard.weight.numel(), CHUNK):
            here = slice(begin, begin + CHUNK)
            weight, exp_avg, exp_avg_sq = (target[here] for target in targets)
            results = adamw_float32(
                weight, shard.grad[here], exp_avg, exp_avg_sq, options.scalars, maximize=options.maximize
            )
            for target, result in zip(targets, results, strict=True):
                target[here] = round_nearest(result) if target.dtype == torch.bfloat16 else result
