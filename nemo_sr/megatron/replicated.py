# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""AdamWSR under Megatron-core without the distributed optimizer: every data-parallel rank steps all its weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from megatron.core.optimizer.optimizer import FP32Optimizer

from nemo_sr.megatron.boxes import HeldState
from nemo_sr.megatron.checkpoint import MOMENTS, CheckpointedState, initialize_states
from nemo_sr.megatron.clipping import FoldedClipping
from nemo_sr.megatron.naming import ParameterPlace


class SRReplicatedOptimizer(FoldedClipping, CheckpointedState, FP32Optimizer):  # type: ignore[misc]
    """Steps the BF16 model parameters themselves, from Megatron's main_grad.

    Megatron's optimizer for BF16 models without the distributed one would keep FP32 masters; its FP32 optimizer keeps
    nothing beside the model's parameters, which is what is wanted here. Data-parallel ranks get the same gradients and
    draw the same noise, so they stay alike to the bit. Memory is 4 bytes a parameter on every rank.

    Args:
        make_optimizer: Called with parameter groups; returns an AdamWSR.
        places: Canonical name and place of every parameter.
        config: Megatron's OptimizerConfig, with use_precision_aware_optimizer_no_fp8_or_ds_fp8 set.
        param_groups: Megatron's parameter groups.
    """

    def __init__(
        self,
        make_optimizer: Callable[[list[dict[str, Any]]], Any],
        places: Mapping[torch.nn.Parameter, ParameterPlace],
        config: Any,
        param_groups: list[dict[str, Any]],
    ) -> None:
        inner: Any = make_optimizer(param_groups) if param_groups else None
        super().__init__(inner, config, initialize_states)
        for param in self.get_parameters():
            inner.bind(param, places[param].name, places[param].layouts(0, param.numel()))

    @torch.no_grad()
    def prepare_grads(self) -> bool:
        """Point the optimizer at Megatron's gradients; returns whether one is known not to be finite: never."""
        for param in self.get_parameters():
            param.decoupled_grad = param.main_grad
        return False

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` or, after dist_checkpointing.load, :meth:`sharded_state_dict` returned.

        What Megatron's own Adam saved is taken too: its moments and step, with this optimizer's options.

        Raises:
            ValueError: groups or noise version differ from the present ones.
        """
        if "param_state" in state_dict:
            self._load_sharded_state(state_dict)
        else:
            self.optimizer.load_state_dict(state_dict)

    def sharded_state_dict(
        self, model_sharded_state_dict: dict[str, Any], is_loading: bool = False, metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the state for Megatron's dist_checkpointing, each moment cut as its parameter is."""
        return self._sharded_state(model_sharded_state_dict, is_loading)

    def _held(self) -> Iterator[HeldState]:
        for param in self.get_parameters():
            yield HeldState(param, 0, {moment: self.optimizer.state[param][moment] for moment in MOMENTS})

    def _replica(self) -> None:
        return None
