# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""AdamW with stochastic rounding inside Megatron-core: all that patches or extends it."""

from typing import TYPE_CHECKING, Any

from nemo_sr.megatron.cpu_platform import cpu_platform
from nemo_sr.megatron.hooks import install, uninstall

if TYPE_CHECKING:
    from nemo_sr.megatron.checkpoint import checkpoint_metadata
    from nemo_sr.megatron.fitting import check_checkpoint

__all__ = ["check_checkpoint", "checkpoint_metadata", "cpu_platform", "install", "uninstall"]


def __getattr__(name: str) -> Any:
    # These import Megatron, which must not happen before cpu_platform() has been entered.
    if name == "checkpoint_metadata":
        from nemo_sr.megatron.checkpoint import checkpoint_metadata

        return checkpoint_metadata
    if name == "check_checkpoint":
        from nemo_sr.megatron.fitting import check_checkpoint

        return check_checkpoint
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
