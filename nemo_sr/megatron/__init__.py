# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""AdamW with stochastic rounding inside Megatron-core: all that patches or extends it."""

from nemo_sr.megatron.checkpoint import checkpoint_metadata
from nemo_sr.megatron.cpu_platform import cpu_platform
from nemo_sr.megatron.fitting import check_checkpoint
from nemo_sr.megatron.hooks import install, uninstall

__all__ = ["check_checkpoint", "checkpoint_metadata", "cpu_platform", "install", "uninstall"]
