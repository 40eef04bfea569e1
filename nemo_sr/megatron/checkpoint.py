# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""How the state of adamw_sr goes to and from a Megatron-core checkpoint: one form for every layout and optimizer."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from nemo_sr.megatron.boxes import HeldState, copy_state_, describe_state
from nemo_sr.megatron.versions import is_since
from nemo_sr.words import LR_ADVICE

FORMAT = "fully_reshardable"
SHARDING_TYPE = "distrib_optim_sharding_type"
_SHARDING_TYPES = ("dp_reshardable", FORMAT) if is_since("0.15") else (FORMAT,)
# What Megatron takes where nothing is said, and what NeMo 2.5 asks for.
_REPLACED = (None, "fully_sharded_model_space", "dp_zero_gather_scatter")
MOMENTS = ("exp_avg", "exp_avg_sq")
# What Megatron tells groups apart by; from 0.19 on by their learning rates too, which a resumed run may change.
_IDENTITY = ("wd_mult", "lr_mult", "is_expert_parallel", "is_decoupled_lr")


def checkpoint_metadata() -> dict[str, Any]:
    """Return the metadata for ``sharded_state_dict(metadata=...)`` of the model and of the optimizer.

    It chooses ``fully_reshardable``. For adamw_sr that is 6 bytes a parameter on disk (the model's 2, and 4 for the
    moments), loads to the bit in any layout, with the distributed optimizer or without, and gathers nothing.
    Megatron's ``dp_reshardable`` works too, but loads in the same tensor and pipeline layout only, and Megatron refuses
    it where a rank's part of a bucket is nothing but padding.
    """
    # A parameter's keys must not depend on how many optimizers there are (experts have one of their own).
    return {SHARDING_TYPE: FORMAT, "chained_optim_avoid_prefix": True}


def choose_format(metadata: Mapping[str, Any] | None, sharding_type: str | None = None) -> dict[str, Any]:
    """Return the metadata that a sharded state dict is made with.

    A program that does not know of adamw_sr may ask for an older form of Megatron's, or for none. It gets that of
    :func:`checkpoint_metadata` instead, for saving and loading alike, and a warning.

    Args:
        metadata: As the program passes it. ``distrib_optim_sharding_type`` is "fully_reshardable", "dp_reshardable"
            (from megatron-core 0.15 on), or one that is replaced: "fully_sharded_model_space",
            "dp_zero_gather_scatter", or none.
        sharding_type: The older place for that type; it wins.

    Raises:
        ValueError: another sharding type.
    """
    given = {**(metadata or {})}
    asked = sharding_type or given.get(SHARDING_TYPE)
    if asked in _SHARDING_TYPES:
        return {**given, SHARDING_TYPE: asked}
    if asked not in _REPLACED:
        raise ValueError(
            f"{SHARDING_TYPE} must be one of {', '.join(_SHARDING_TYPES)}; got {asked!r}. "
            "Pass metadata=nemo_sr.megatron.checkpoint_metadata()."
        )
    if torch.distributed.get_rank() == 0:
        warnings.warn(
            f"{SHARDING_TYPE} should be one of {', '.join(_SHARDING_TYPES)}; the program asks for {asked!r}. The state "
            f"of adamw_sr is saved and loaded as {FORMAT} instead, which loads in every layout.",
            stacklevel=2,
        )
    return {**checkpoint_metadata(), **given, SHARDING_TYPE: FORMAT}


class CheckpointedState:
    """Saves and loads an AdamWSR inside a MegatronOptimizer; put it before that class among the bases.

    The tensors have the keys, shapes and places of Megatron's own ``fully_reshardable`` format and of its optimizer
    without data-parallel shards, so the checkpoint of one loads into the other. There is no copy of the weights: the
    optimizer steps the model's own, and the model's state dict has them.
    """

    optimizer: Any
    is_stub_optimizer: bool

    @abstractmethod
    def _held(self) -> Iterator[HeldState]:
        """Yield the moments of every parameter that this rank holds a part of, in a fixed order."""

    @abstractmethod
    def _replica(self) -> int | None:
        """Return which data-parallel copy the moments are, as describe_state takes it."""

    def _states_to_describe(self, is_loading: bool) -> Iterable[HeldState]:
        """Return the moments that this rank saves, or room for those that it loads. Collective."""
        return self._held()

    def _copy_loaded(self, loaded: Mapping[str, torch.Tensor]) -> None:
        """Take the moments from what _states_to_describe() was described as, after it was loaded."""
        copy_state_(self._held(), loaded)

    def _groups_to_save(self) -> list[dict[str, Any]]:
        """Return the groups' options, `seed` and roundings among them, and the step.

        Raises:
            ValueError: parameters have been stepped different numbers of times, which Megatron cannot store.
        """
        groups = self.optimizer.param_groups
        steps = {int(state["step"]) for state in self.optimizer.state.values() if state}
        if len(steps) > 1:
            raise ValueError(
                f"a Megatron checkpoint has one step for all parameters; they have {sorted(steps)}. "
                "Step all parameters alike, or train the others in another optimizer."
            )
        step = steps.pop() if steps else max(group.get("step", 0) for group in groups)
        # The tensors' keys hold the names; the groups are stored once for all ranks, whose names differ.
        return [
            {**{key: value for key, value in group.items() if key not in ("params", "param_names")}, "step": step}
            for group in groups
        ]

    def _sharded_state(self, model_sharded_state_dict: dict[str, Any], is_loading: bool) -> dict[str, Any]:
        if self.is_stub_optimizer:
            return {}
        if is_loading:
            initialize_states(self.optimizer)
        return {
            "optimizer": {"param_groups": self._groups_to_save()},
            "param_state": describe_state(
                model_sharded_state_dict, self._states_to_describe(is_loading), replica=self._replica()
            ),
            "param_state_sharding_type": FORMAT,
        }

    @torch.no_grad()
    def _load_sharded_state(self, state_dict: Mapping[str, Any]) -> None:
        if self.is_stub_optimizer:
            return
        self._load_groups(state_dict)
        if "param_state" in state_dict:
            self._copy_loaded(state_dict["param_state"])

    def _check_groups(self, saved_groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Refuse saved groups that do not fit, or return their options."""
        return saved_groups

    def _load_groups(self, state_dict: Mapping[str, Any]) -> None:
        """Take over the groups' options and the step, and give every parameter its state."""
        inner = self.optimizer
        present = inner.state_dict()["param_groups"]
        saved_groups, step = read_groups(state_dict)
        if all("noise_version" in group for group in saved_groups):
            saved_groups = self._check_groups(match_groups(saved_groups, inner.param_groups))
        else:  # of an optimizer with masters: a new run, whose options are the configuration's
            saved_groups = [{} for _ in present]
            advise_on_lr()
        kept = ("params", "param_names")
        merged = [
            {**({} if saved else group), **saved, **{key: group[key] for key in kept}, "step": step}
            for saved, group in zip(saved_groups, present, strict=True)
        ]
        states = {param: state for param, state in inner.state.items() if state}
        inner.load_state_dict({"state": {}, "param_groups": merged})
        inner.state.update(states)
        initialize_states(inner)
        for state in inner.state.values():
            state["step"].fill_(step)


def initialize_states(optimizer: Any, config: Any = None) -> None:
    """Give every parameter of an AdamWSR its state, as loading needs it."""
    for group in optimizer.param_groups:
        for param in group["params"]:
            optimizer.initialize_state(param)


def read_groups(state_dict: Mapping[str, Any]) -> tuple[list[dict[str, Any]], int]:
    """Return the saved groups and the step, of any of Megatron's optimizers.

    Raises:
        ValueError: there are no groups, or not one step.
    """
    inner = state_dict.get("optimizer", state_dict)
    groups = inner.get("param_groups")
    if not groups:
        raise ValueError(
            f"a checkpoint's optimizer must have param_groups; it has {', '.join(map(str, state_dict)) or 'nothing'}. "
            "Choose a checkpoint that was saved with its optimizer, or load the model alone."
        )
    common = inner.get("state", {}).get("common_step")
    steps = {int(common)} if common is not None else {int(g["step"]) for g in groups if g.get("step") is not None}
    if len(steps) != 1:
        raise ValueError(
            f"a checkpoint must have one optimizer step; it has {sorted(steps) or 'none'}. "
            "Choose a checkpoint whose parameters have all been stepped alike."
        )
    return groups, steps.pop()


def match_groups(saved_groups: list[dict[str, Any]], groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the saved groups in the order of the present ones, which Megatron tells apart by their multipliers.

    Raises:
        ValueError: the groups are others.
    """
    saved_keys, keys = [_identity(group) for group in saved_groups], [_identity(group) for group in groups]
    if sorted(saved_keys) != sorted(keys):
        raise ValueError(
            f"the saved parameter groups must match the optimizer's in {', '.join(_IDENTITY)}; "
            f"saved {saved_keys}, present {keys}. Build the optimizer with the groups it was saved with."
        )
    # Groups with one identity (a decoupled learning rate does not show in it) are matched in their order.
    unused = list(zip(saved_keys, saved_groups, strict=True))
    return [unused.pop([saved_key for saved_key, _ in unused].index(key))[1] for key in keys]


def _identity(group: Mapping[str, Any]) -> tuple[Any, ...]:
    # NeMo renames wd_mult and lr_mult to pre_wd_mult and pre_lr_mult.
    return tuple(group[key] if key in group else group[f"pre_{key}"] for key in _IDENTITY)


def advise_on_lr() -> None:
    """Say, once for all ranks, what a run that goes on from FP32 masters should change."""
    if torch.distributed.get_rank() == 0:
        warnings.warn(
            "The checkpoint's optimizer kept FP32 masters: its moments were cast to BF16 (nearest), its step is kept, "
            f"and the BF16 weights go on from here. {LR_ADVICE}",
            stacklevel=2,
        )
