# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What get_megatron_optimizer returns for ``adamw_sr``: Megatron's chain of one optimizer, or of two with experts."""

from __future__ import annotations

from typing import Any

from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.optimizer import ChainedOptimizer

from nemo_sr.megatron.checkpoint import FORMAT, SHARDING_TYPE, checkpoint_metadata, choose_format
from nemo_sr.megatron.clipping import FoldedClipping


class SRChainedOptimizer(FoldedClipping, ChainedOptimizer):  # type: ignore[misc]
    """Megatron's chain, its clipping folded into the step, its checkpoints in a form that adamw_sr has."""

    def sharded_state_dict(
        self,
        model_sharded_state_dict: dict[str, Any],
        is_loading: bool = False,
        sharding_type: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> dict[Any, Any]:
        """Return the state for Megatron's dist_checkpointing. Collective.

        The arguments have names, unlike those of Megatron's chain: NeMo 2 passes metadata only where it finds the name.

        Args:
            model_sharded_state_dict: The model's sharded state dict.
            is_loading: Whether to load into it, which makes room for the moments first.
            sharding_type: Deprecated by Megatron; metadata says it.
            metadata: As :func:`nemo_sr.megatron.checkpoint.choose_format` takes it.

        Raises:
            ValueError: a sharding type that adamw_sr neither has nor replaces.
        """
        if any(isinstance(link, DistributedOptimizer) for link in self.chained_optimizers):
            metadata = choose_format(metadata, sharding_type)
        else:  # which has one form, whatever is asked for
            metadata = {**checkpoint_metadata(), **(metadata or {}), SHARDING_TYPE: FORMAT}
        state: dict[Any, Any] = super().sharded_state_dict(model_sharded_state_dict, is_loading, metadata=metadata)
        return state
