# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""AdamWSR's parameters in the form NeMo's registry wants. Imports NeMo; used by ``registry.register`` alone."""

from __future__ import annotations

from dataclasses import dataclass

from nemo.core.config.optimizers import OptimizerParams


@dataclass
class AdamWSRParams(OptimizerParams):  # type: ignore[misc]
    """Defaults of :class:`nemo_sr.AdamWSR` for NeMo configurations; ``lr`` must be given.

    Attributes are AdamWSR's arguments, under the same names.
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 1e-2
    seed: int = 0
    exp_avg_rounding: str = "nearest"
    exp_avg_sq_rounding: str = "stochastic"
    fp32_params: str = "error"
    maximize: bool = False
    capturable: bool = False
    backend: str = "auto"
