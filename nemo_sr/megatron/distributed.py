# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Megatron's DistributedOptimizer around AdamWSR: BF16 shards of Megatron's own buffer, and no master weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.tensor_parallel import copy_tensor_model_parallel_attributes

from nemo_sr.megatron.boxes import HeldState
from nemo_sr.megatron.checkpoint import (
    FORMAT,
    MOMENTS,
    SHARDING_TYPE,
    CheckpointedState,
    choose_format,
    initialize_states,
)
from nemo_sr.megatron.clipping import FoldedClipping
from nemo_sr.megatron.naming import ParameterPlace
from nemo_sr.megatron.versions import is_since
from nemo_sr.megatron.whole import copy_whole_, gather_whole_, make_whole

# Rank-dependent names of a group's parameters, in the checkpoint beside the group's options.
_NAMES = "nemo_sr_names"


class SRDistributedOptimizer(FoldedClipping, CheckpointedState, DistributedOptimizer):  # type: ignore[misc]
    """The stock distributed optimizer whose inner optimizer steps views of Megatron's parameter buffer.

    It takes Megatron's precision-aware path: BF16 shards, gradients in ``.decoupled_grad``. Memory is 4 bytes a
    parameter (two BF16 moments), divided by the data-parallel size.

    Args:
        make_optimizer: Called with parameter groups of shards; returns an AdamWSR.
        places: Canonical name and place of every parameter.
        config: Megatron's OptimizerConfig, with use_precision_aware_optimizer_no_fp8_or_ds_fp8 set.
        param_groups: Megatron's parameter groups, of model parameters.
        **kwargs: The rest of DistributedOptimizer's arguments.
    """

    optimizer: Any

    def __init__(
        self,
        make_optimizer: Callable[[list[dict[str, Any]]], Any],
        places: Mapping[torch.nn.Parameter, ParameterPlace],
        config: Any,
        param_groups: list[dict[str, Any]],
        **kwargs: Any,
    ) -> None:
        if not param_groups:
            super().__init__(None, config, None, None, **kwargs)
            return
        options = [{key: value for key, value in group.items() if key != "params"} for group in param_groups]
        self._names = [[places[param].name for param in group["params"]] for group in param_groups]
        # Megatron exchanges the parameters of the optimizer it is given for shards. It is given torch's AdamW, which
        # it knows; the optimizer that steps is made of the shards.
        super().__init__(torch.optim.AdamW(param_groups), config, None, initialize_states, **kwargs)
        shards = [list(group["params"]) for group in self.optimizer.param_groups]
        self._shards: dict[torch.nn.Parameter, torch.Tensor] = {}
        for number, models in enumerate(self.model_fp32_groups):
            # Megatron leaves these attached to autograd's graph; an optimizer takes leaves only.
            leaves = [_detached(shard) for shard in self.shard_fp32_groups[number]]
            shards[number][: len(leaves)] = self.shard_fp32_groups[number][:] = leaves
            self._shards.update(zip(models, leaves, strict=True))
        for models, pieces in zip(self.model_float16_groups, self.shard_float16_groups, strict=True):
            self._shards.update(zip(models, pieces, strict=True))
        self.optimizer = make_optimizer(
            [{**group, "params": params} for group, params in zip(options, shards, strict=True)]
        )
        for param, shard in self._shards.items():
            elements = self._get_model_param_range_map(param)["param"]
            self.optimizer.bind(shard, places[param].name, places[param].layouts(elements.start, elements.end))

    def state_dict(self) -> dict[str, Any]:
        """Return what is not per parameter: the groups' options, `seed` and roundings among them, and the step.

        Raises:
            ValueError: parameters have been stepped different numbers of times, which Megatron cannot store.
        """
        groups = zip(self._groups_to_save(), self._names, strict=True)
        return {"optimizer": {"param_groups": [{**group, _NAMES: list(names)} for group, names in groups]}}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` or, after dist_checkpointing.load, :meth:`sharded_state_dict` returned.

        What Megatron's own Adam saved is taken too: its moments and step, with this optimizer's options.

        Raises:
            ValueError: groups, names or noise version differ from the present ones.
        """
        if state_dict.get("param_state_sharding_type") == "dp_reshardable":
            self._load_groups(state_dict)
            self.load_parameter_state_from_dp_reshardable(state_dict["param_state"])
        else:
            self._load_sharded_state(state_dict)

    def sharded_state_dict(
        self,
        model_sharded_state_dict: dict[str, Any],
        is_loading: bool = False,
        sharding_type: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return the state for Megatron's dist_checkpointing.

        Args:
            model_sharded_state_dict: The model's sharded state dict.
            is_loading: Whether to load into it, which makes room for the moments first.
            sharding_type: Deprecated by Megatron; metadata says it.
            metadata: As :func:`nemo_sr.megatron.checkpoint.choose_format` takes it.

        Raises:
            ValueError: a sharding type that adamw_sr neither has nor replaces.
        """
        metadata = choose_format(metadata, sharding_type)
        if metadata[SHARDING_TYPE] == FORMAT:
            return self._sharded_state(model_sharded_state_dict, is_loading)
        state: dict[str, Any] = super().sharded_state_dict(model_sharded_state_dict, is_loading, metadata=metadata)
        return state

    def _held(self) -> Iterator[HeldState]:
        for param in self._shards:
            start = self._get_model_param_range_map(param)["param"].start
            yield HeldState(param, start, self._get_main_param_and_optimizer_states(param))

    def _replica(self) -> int | None:
        return int(self.distributed_optimizer_instance_id) if is_since("0.15") else None

    def _whole(self) -> list[HeldState]:
        return make_whole([param for buffer in self.buffers for param in buffer.params], MOMENTS)

    def _states_to_describe(self, is_loading: bool) -> Iterable[HeldState]:
        if is_since("0.15"):
            return self._held()
        whole = self._whole()
        if not is_loading:
            gather_whole_(whole, self._held(), self.data_parallel_group)
        return whole

    def _copy_loaded(self, loaded: Mapping[str, torch.Tensor]) -> None:
        if is_since("0.15"):
            super()._copy_loaded(loaded)
        else:
            copy_whole_(self._whole(), self._held(), loaded)

    def save_parameter_state(self, filename: str) -> None:
        """Refuse Megatron's legacy format.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(
            f"adamw_sr is saved with megatron.core.dist_checkpointing; got the legacy file {filename}. "
            "Use optimizer.sharded_state_dict (in Megatron-LM: --ckpt-format torch_dist)."
        )

    def load_parameter_state(self, filename: str, *, update_legacy_format: bool = False) -> None:
        """Refuse Megatron's legacy format.

        Raises:
            RuntimeError: always.
        """
        self.save_parameter_state(filename)

    def _check_groups(self, saved_groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        checked = []
        for saved, names in zip(saved_groups, self._names, strict=True):
            for old, new in zip(saved.get(_NAMES, names), names, strict=True):
                if old != new:
                    raise ValueError(
                        f"a saved name must equal the present one, since the noise depends on it; saved {old!r}, "
                        f"present {new!r}. Load the checkpoint into the model and layout that wrote it."
                    )
            checked.append({key: value for key, value in saved.items() if key != _NAMES})
        return checked

    def _get_main_param_and_optimizer_states(self, model_param: torch.nn.Parameter) -> dict[str, torch.Tensor]:
        # Without Megatron's "param": the weights are the model's own, and a checkpoint has them from there.
        state = self.optimizer.state[self._shards[model_param]]
        return {moment: state[moment] for moment in MOMENTS}

    def _set_main_param_and_optimizer_states(
        self, model_param: torch.nn.Parameter, tensors: Mapping[str, torch.Tensor]
    ) -> None:
        for moment, target in self._get_main_param_and_optimizer_states(model_param).items():
            target.detach().copy_(tensors[moment])


def _detached(shard: torch.Tensor) -> torch.Tensor:
    leaf = shard.detach()
    copy_tensor_model_parallel_attributes(leaf, shard)
    if hasattr(shard, "shared"):
        leaf.shared = shard.shared  # type: ignore[attr-defined]
    return leaf
