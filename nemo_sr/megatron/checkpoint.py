# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Which of Megatron-core's checkpoint formats to use."""

from __future__ import annotations


def checkpoint_metadata() -> dict[str, str]:
    """Return the metadata for ``sharded_state_dict(metadata=...)`` of the model and of the optimizer.

    It chooses ``fully_reshardable``: BF16 on disk (6 bytes a parameter beside the model's 2), loads to the bit in any
    data, tensor and pipeline layout; the price is that every data-parallel rank gathers whole buffers in CPU memory
    when it saves. Megatron's ``dp_reshardable`` works too and gathers nothing, but loads in the same tensor and
    pipeline layout only, and Megatron refuses it where a rank's part of a bucket is nothing but padding. Megatron's
    default without metadata does not work.
    """
    return {"distrib_optim_sharding_type": "fully_reshardable"}
