# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""BF16 training with stochastic rounding, for PyTorch, NVIDIA NeMo and Megatron-core.

Using this package needs torch alone. ``nemo_sr.megatron`` imports Megatron-core when first used.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

# Imported when first asked for: command lines start without torch, which takes seconds.
_HOMES = {
    "AdamWSR": "nemo_sr.optimizer",
    "AdamW_SR_BF16": "nemo_sr.paper",
    "RoundingReport": "nemo_sr.diagnostics",
    "ShardLayout": "nemo_sr.layout",
    "check_replicas": "nemo_sr.replicas",
    "noise16": "nemo_sr.noise",
    "register": "nemo_sr.registry",
    "round_stochastic": "nemo_sr.rounding",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        found = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = found
        return found
    if name == "megatron" or f"nemo_sr.{name}" in _HOMES.values():
        return importlib.import_module(f"nemo_sr.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
