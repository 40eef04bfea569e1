# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Saves and loads Megatron's own DistributedOptimizer, FP32 masters and all, in the form that adamw_sr has.

Megatron-core's own ``fully_reshardable`` (0.16.1) drops the padding between buckets, although it counts it when it
cuts the parameters out again: with more than one bucket, masters and moments are shifted against the parameters. What
is written here has the same keys, shapes and places, and is right.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import megatron.core
import torch

from nemo_sr.megatron.boxes import HeldState, copy_state_, describe_state
from nemo_sr.megatron.checkpoint import FORMAT, MOMENTS, match_groups, read_groups
from nemo_sr.megatron.versions import is_since

MASTER = "param"
"""The masters' name under ``optimizer.state`` in what is written."""


def describe_stock_state(
    optimizer: Any, model_sharded_state_dict: dict[str, Any], *, is_loading: bool = False, masters: str | None = MASTER
) -> dict[Any, Any]:
    """Return the state of what get_megatron_optimizer made for "adam" with the distributed optimizer.

    Args:
        optimizer: Megatron's chain of DistributedOptimizers.
        model_sharded_state_dict: The model's sharded state dict.
        is_loading: Whether to load into it, which makes room for the moments first.
        masters: Under which name the checkpoint has FP32 masters; None: it has none, as adamw_sr's.

    Raises:
        RuntimeError: Megatron-core 0.14 is installed, whose checkpoints do not take what a rank holds.
    """
    if not is_since("0.15"):
        raise RuntimeError(
            "megatron-core must be 0.15 or newer to save or load shards of FP32 masters; "
            f"{megatron.core.__version__} is installed. Install a newer one, or set use_distributed_optimizer=False."
        )

    def describe(link: Any) -> dict[str, Any]:
        if is_loading:
            _make_state(link)
        held = _held(link, masters)
        return {
            "optimizer": link.state_dict()["optimizer"],
            "param_state": describe_state(
                model_sharded_state_dict, held, replica=link.distributed_optimizer_instance_id
            ),
            "param_state_sharding_type": FORMAT,
        }

    links = optimizer.chained_optimizers
    # As Megatron's chain does it.
    return describe(links[0]) if len(links) == 1 else {number: describe(link) for number, link in enumerate(links)}


@torch.no_grad()
def load_stock_state(optimizer: Any, state_dict: dict[Any, Any], *, masters: str | None = MASTER) -> None:
    """Load what :func:`describe_stock_state` returned, after dist_checkpointing.load.

    Call it after the model has been loaded: without masters in the checkpoint they are made of the model's weights.

    Args:
        optimizer: The optimizer that was described.
        state_dict: Its state.
        masters: As it was described with.
    """
    links = optimizer.chained_optimizers
    for number, link in enumerate(links):
        _load_link(link, state_dict if len(links) == 1 else state_dict[number], masters)
        if masters is None:
            link.reload_model_params()


def _load_link(link: Any, state_dict: dict[str, Any], masters: str | None) -> None:
    groups, step = read_groups(state_dict)
    if any("noise_version" in group for group in groups):
        # Of adamw_sr: a new run, whose options are the configuration's.
        groups = link.optimizer.state_dict()["param_groups"]
    else:
        groups = match_groups(groups, link.optimizer.param_groups)
    link.load_state_dict(
        {"optimizer": {"param_groups": [{**group, "step": _like_inner(link, step)} for group in groups]}}
    )
    for state in link.optimizer.state.values():
        if "step" in state:
            # Megatron hands every parameter the same tensor; each step would then count once per parameter.
            state["step"] = state["step"].clone()
    if "param_state" in state_dict:
        copy_state_(_held(link, masters), state_dict["param_state"])


def _held(link: Any, masters: str | None) -> Iterator[HeldState]:
    for ranges in link.gbuf_ranges:
        for buckets in ranges.values():
            for bucket in buckets:
                for param, place in bucket["param_map"].items():
                    tensors = link._get_main_param_and_optimizer_states(param)
                    named = {name: tensors[name] for name in MOMENTS}
                    if masters is not None:
                        named[masters] = tensors["param"]
                    yield HeldState(param, place["param"].start, named)


def _make_state(link: Any) -> None:
    link.init_state_fn(link.optimizer, link.config)
    if not isinstance(link.optimizer, torch.optim.AdamW):
        return  # Transformer Engine and Apex keep the step in the groups
    for state in link.optimizer.state.values():
        # Megatron asks for the step before it loads, and finds none in an optimizer that has not stepped.
        state.setdefault("step", torch.tensor(0.0))


def _like_inner(link: Any, step: int) -> float | int:
    return float(step) if isinstance(link.optimizer, torch.optim.AdamW) else step
