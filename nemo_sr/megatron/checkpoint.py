# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Which of Megatron-core's checkpoint formats to use."""

from __future__ import annotations


def checkpoint_metadata() -> dict[str, str]:
    """Return the metadata for ``sharded_state_dict(metadata=...)`` of the model and of the optimizer.

    ``dp_reshardable``: every rank writes its own shards, BF16 as they are (6 bytes a parameter), without a copy and
    without communication; it loads in the same tensor and pipeline layout. Megatron's ``fully_reshardable`` works too,
    with the same bytes on disk; it gathers whole buffers in the CPU memory of every data-parallel rank. Megatron's
    default without metadata does not work.
    """
    return {"distrib_optim_sharding_type": "dp_reshardable"}
