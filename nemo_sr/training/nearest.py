# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The paper's plain BF16 baseline: AdamW in BF16 without a master copy, everything rounded to nearest."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nemo_sr.optimizer import AdamWSR
from nemo_sr.rounding import round_nearest
from nemo_sr.update import StepScalars, adamw_float32


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
        self._step_function = _step_to_nearest_


def _step_to_nearest_(
    weight: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, *, scalars: StepScalars, **noise: Any
) -> None:
    results = adamw_float32(weight, grad, exp_avg, exp_avg_sq, scalars, maximize=noise["maximize"])
    for target, result in zip((weight, exp_avg, exp_avg_sq), results, strict=True):
        target.copy_(round_nearest(result) if target.dtype == torch.bfloat16 else result)
