# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The part of the schema that says which steps profilers record; see ``schema.py``."""

from __future__ import annotations

from dataclasses import dataclass, field

Steps = int


@dataclass
class NsysProfileConfig:
    """Which steps NVIDIA's Nsight Systems records.

    The command is to be started by `nsys profile --capture-range=cudaProfilerApi --capture-range-end=stop`.
    """

    enabled: bool = False
    """Record, and name the parts of a step (NVTX ranges)."""

    start_step: Steps = 10
    """First step; steps of a start are counted from 0 here, as NeMo does."""

    end_step: Steps = 10
    """Last step."""

    ranks: list[int] = field(default_factory=lambda: [0])
    """Ranks that record."""

    gen_shape: bool = False
    """Record the shapes of tensors too."""


@dataclass
class TorchProfileConfig:
    """Of which steps torch's profiler writes a trace into the run's folder."""

    enabled: bool = False
    """Write traces. (nemo_sr)"""

    start_step: Steps = 10
    """First step; the run's first step is 1. (nemo_sr)"""

    end_step: Steps = 12
    """Last step. (nemo_sr)"""

    ranks: list[int] = field(default_factory=lambda: [0])
    """Ranks that write one each. (nemo_sr)"""
