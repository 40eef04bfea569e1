# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""BF16 training with stochastic rounding, for PyTorch, NVIDIA NeMo and Megatron-core.

Importing this package needs torch alone. ``nemo_sr.megatron`` imports Megatron-core when first used.
"""

from nemo_sr.diagnostics import RoundingReport
from nemo_sr.layout import ShardLayout
from nemo_sr.noise import noise16
from nemo_sr.optimizer import AdamWSR
from nemo_sr.paper import AdamW_SR_BF16
from nemo_sr.registry import register
from nemo_sr.replicas import check_replicas
from nemo_sr.rounding import round_stochastic

__version__ = "0.1.0"

__all__ = [
    "AdamWSR",
    "AdamW_SR_BF16",
    "RoundingReport",
    "ShardLayout",
    "check_replicas",
    "noise16",
    "register",
    "round_stochastic",
]


def __getattr__(name: str) -> object:
    if name == "megatron":
        import importlib

        return importlib.import_module("nemo_sr.megatron")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
