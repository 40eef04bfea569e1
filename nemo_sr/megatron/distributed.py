# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Megatron's DistributedOptimizer around AdamWSR: BF16 shards of Megatron's own buffer, and no master weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.optimizer import param_group_identifier_keys
from megatron.core.tensor_parallel import copy_tensor_model_parallel_attributes

from nemo_sr.megatron.clipping import FoldedClipping
from nemo_sr.megatron.naming import ParameterPlace

SHARDING_TYPES = ("dp_reshardable", "fully_reshardable")
# Rank-dependent names of a group's parameters, in the checkpoint beside the group's options.
_NAMES = "nemo_sr_names"
_STATE_KEYS = ("param", "exp_avg", "exp_avg_sq")


class SRDistributedOptimizer(FoldedClipping, DistributedOptimizer):  # type: ignore[misc]
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
        steps = {int(state["step"]) for state in self.optimizer.state.values() if state}
        if len(steps) > 1:
            raise ValueError(
                f"a Megatron checkpoint has one step for all parameters; they have {sorted(steps)}. "
                "Step all parameters alike, or train the others in another optimizer."
            )
        step = steps.pop() if steps else max(group.get("step", 0) for group in self.optimizer.param_groups)
        groups = [
            {
                **{k: v for k, v in group.items() if k not in ("params", "param_names")},
                "step": step,
                _NAMES: list(names),
            }
            for group, names in zip(self.optimizer.param_groups, self._names, strict=True)
        ]
        return {"optimizer": {"param_groups": groups}}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` or, after dist_checkpointing.load, :meth:`sharded_state_dict` returned.

        Raises:
            ValueError: groups, names or noise version differ from the present ones.
        """
        saved_groups = self._match_groups(state_dict["optimizer"]["param_groups"])
        present = self.optimizer.state_dict()["param_groups"]
        merged = [
            {
                **{k: v for k, v in saved.items() if k != _NAMES},
                "params": group["params"],
                "param_names": group["param_names"],
            }
            for saved, group in zip(saved_groups, present, strict=True)
        ]
        states = {param: state for param, state in self.optimizer.state.items() if state}
        self.optimizer.load_state_dict({"state": {}, "param_groups": merged})
        self.optimizer.state.update(states)
        initialize_states(self.optimizer)
        for group in self.optimizer.param_groups:
            for param in group["params"]:
                # A tensor of its own for each parameter: a shared one would be counted up once a parameter.
                self.optimizer.state[param]["step"] = torch.tensor(int(group["step"]), dtype=torch.int64)
        if "param_state" in state_dict:
            load = {
                "dp_reshardable": self.load_parameter_state_from_dp_reshardable,
                "fully_reshardable": self.load_parameter_state_from_fully_reshardable,
            }[state_dict["param_state_sharding_type"]]
            load(state_dict["param_state"])

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
            metadata: ``distrib_optim_sharding_type`` is "fully_reshardable" (see checkpoint_metadata) or
                "dp_reshardable".

        Raises:
            ValueError: another sharding type, or none.
        """
        chosen = sharding_type or (metadata or {}).get("distrib_optim_sharding_type")
        if chosen not in SHARDING_TYPES:
            raise ValueError(
                f"distrib_optim_sharding_type must be one of {', '.join(SHARDING_TYPES)}; got {chosen!r}. "
                "Pass metadata=nemo_sr.megatron.checkpoint_metadata()."
            )
        state: dict[str, Any] = super().sharded_state_dict(
            model_sharded_state_dict, is_loading, metadata={**(metadata or {}), "distrib_optim_sharding_type": chosen}
        )
        if chosen == "fully_reshardable":
            # There the names are in the tensors' keys, and the options are stored once for all ranks.
            for group in state["optimizer"]["param_groups"]:
                del group[_NAMES]
        return state

    @torch.no_grad()
    def get_parameter_state_dp_zero(
        self, use_gloo_comm: bool = True, empty_data: bool = False, return_on_all_ranks: bool = False
    ) -> dict[Any, Any] | None:
        """Gather weights and moments of whole buffers on the CPU, for the "fully_reshardable" format.

        Megatron's own method (0.16.1) drops the padding between buckets, although its callers count it: with more
        than one bucket it shifts weights and moments. It also makes everything FP32.
        """
        group = self.data_parallel_group_gloo if use_gloo_comm else self.data_parallel_group
        wanted = return_on_all_ranks or group.rank() == 0
        state: dict[Any, Any] = {"buckets_coalesced": True}
        for number, (buffer, ranges) in enumerate(zip(self.buffers, self.gbuf_ranges, strict=True)):
            ((dtypes, bucket_ranges),) = ranges.items()
            whole = {key: torch.zeros(buffer.numel if wanted else 0, dtype=buffer.param_dtype) for key in _STATE_KEYS}
            for bucket, bucket_range in zip(buffer.buckets, bucket_ranges, strict=True):
                begin, end = bucket.offset, bucket.offset + bucket.grad_data.numel()
                device = "cpu" if use_gloo_comm else bucket.grad_data.device
                for key in () if empty_data else _STATE_KEYS:
                    mine = torch.zeros((end - begin) // group.size(), dtype=buffer.param_dtype, device=device)
                    for param, place in bucket_range["param_map"].items():
                        shard = self._get_main_param_and_optimizer_states(param)[key]
                        mine[place["gbuf_local"].start : place["gbuf_local"].end] = shard.to(device)
                    everyones = [torch.empty_like(mine) for _ in range(group.size())]
                    torch.distributed.all_gather(everyones, mine, group=group)
                    if wanted:
                        whole[key][begin:end] = torch.cat(everyones).cpu()
            state[number] = {dtypes: whole}
        return state if wanted else None

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

    def _match_groups(self, saved_groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        saved_keys = [_identity(group) for group in saved_groups]
        keys = [_identity(group) for group in self.optimizer.param_groups]
        if sorted(saved_keys) != sorted(keys):
            raise ValueError(
                f"the saved parameter groups must match the optimizer's in {', '.join(param_group_identifier_keys)}; "
                f"saved {saved_keys}, present {keys}. Build the optimizer with the groups it was saved with."
            )
        # Groups with one identity (a decoupled learning rate does not show in it) are matched in their order.
        unused = list(zip(saved_keys, saved_groups, strict=True))
        matched = [unused.pop([saved_key for saved_key, _ in unused].index(key))[1] for key in keys]
        for saved, names in zip(matched, self._names, strict=True):
            for old, new in zip(saved.get(_NAMES, names), names, strict=True):
                if old != new:
                    raise ValueError(
                        f"a saved name must equal the present one, since the noise depends on it; saved {old!r}, "
                        f"present {new!r}. Load the checkpoint into the model and layout that wrote it."
                    )
        return matched

    def _get_main_param_and_optimizer_states(self, model_param: torch.nn.Parameter) -> dict[str, torch.Tensor]:
        shard = self._shards[model_param]
        state = self.optimizer.state[shard]
        return {"param": shard, "exp_avg": state["exp_avg"], "exp_avg_sq": state["exp_avg_sq"]}

    def _set_main_param_and_optimizer_states(
        self, model_param: torch.nn.Parameter, tensors: Mapping[str, torch.Tensor]
    ) -> None:
        for key, target in self._get_main_param_and_optimizer_states(model_param).items():
            target.detach().copy_(tensors[key])


def initialize_states(optimizer: Any, config: Any = None) -> None:
    """Give every parameter of an AdamWSR its state, as loading needs it."""
    for group in optimizer.param_groups:
        for param in group["params"]:
            optimizer.initialize_state(param)


def _identity(group: Mapping[str, Any]) -> tuple[Any, ...]:
    # NeMo renames wd_mult and lr_mult to pre_wd_mult and pre_lr_mult.
    return tuple(group[key] if key in group else group[f"pre_{key}"] for key in param_group_identifier_keys)


def _detached(shard: torch.Tensor) -> torch.Tensor:
    leaf = shard.detach()
    copy_tensor_model_parallel_attributes(leaf, shard)
    if hasattr(shard, "shared"):
        leaf.shared = shard.shared  # type: ignore[attr-defined]
    return leaf
