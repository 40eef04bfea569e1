# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Marks of tests that need something that not every supported line of Megatron-core has."""

import megatron.core
import pytest

from nemo_sr.megatron.versions import is_since

VERSION = megatron.core.__version__


def since(line, what):
    """Skip a test before a line: `what` came with it."""
    return pytest.mark.skipif(not is_since(line), reason=f"megatron-core {VERSION} does not have {what}")


def before(line, what):
    """Skip a test from a line on: `what` went with it."""
    return pytest.mark.skipif(is_since(line), reason=f"megatron-core {VERSION} does not have {what} any more")


DP_RESHARDABLE = since("0.15", "the dp_reshardable format")
BOXES = since("0.15", "checkpoints that take other parts of tensors than those of a regular grid")
GRIDS_ALONE = before("0.15", "checkpoints that take parts of regular grids alone")
STOCK_BY_BUCKETS = since("0.16", "a dp_reshardable format for torch's AdamW")
GROUPED_MLP = before("0.17", "the legacy GroupedMLP")
BLOCK_SPECS = since("0.15", "specifications of blocks that need no process groups")
OVERRIDES = since("0.16", "overrides of parameter groups")
EMERGING_OPTIMIZERS = since("0.18", "the factory of emerging optimizers")
RESUMES = [
    pytest.param("resumed plain dp_reshardable", marks=DP_RESHARDABLE),
    "resumed plain fully_reshardable",
    "resumed replicated fully_reshardable",
]
