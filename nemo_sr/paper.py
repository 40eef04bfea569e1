# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The optimizer under the paper's name."""

from __future__ import annotations

from typing import Any

from nemo_sr.optimizer import AdamWSR


class AdamW_SR_BF16(AdamWSR):  # noqa: N801
    """AdamWSR under the paper's name. Parameters that are not bfloat16 are always an error.

    Args:
        params: As in ``AdamWSR``, bfloat16 only.
        *args: As in ``AdamWSR``.
        **kwargs: As in ``AdamWSR``, but for ``fp32_params``.

    Raises:
        TypeError: a parameter is not bfloat16; the message names it.

    Source:
        arXiv 2502.20566. ``exp_avg_sq_rounding="nearest"`` gives the paper's rounding of the second moment.
    """

    def __init__(self, params: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("fp32_params", "error") != "error":
            raise ValueError('AdamW_SR_BF16 always refuses FP32 parameters. Use AdamWSR(..., fp32_params="plain").')
        super().__init__(params, *args, **kwargs)
