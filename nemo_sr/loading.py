# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Checks and copies a saved optimizer state before any of it is taken over."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from nemo_sr.noise import NOISE_VERSION
from nemo_sr.rounding import round_nearest

_OPTIONS_OF_OTHERS = ("amsgrad", "foreach", "fused", "differentiable", "decoupled_weight_decay")


def prepare_state_dict(
    state_dict: Mapping[str, Any],
    params: Sequence[Tensor],
    names: Sequence[Sequence[str]],
    rename: Mapping[str, str],
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Check a saved state against the present parameters, and copy its tensors.

    Args:
        state_dict: What AdamWSR.state_dict or torch.optim.AdamW.state_dict returned; not changed.
        params: All present parameters, in order.
        names: Their canonical names, by group.
        rename: {saved name: present name}.

    Returns:
        The state dict without per-parameter state, for torch's own loading of the groups; and each parameter's state
        ({} where there is none): step int64, moments of the parameter's dtype.

    Raises:
        ValueError: names, groups, shapes or noise version do not fit.
    """
    groups = [dict(group) for group in state_dict["param_groups"]]
    saved_lengths, lengths = [len(g["params"]) for g in groups], [len(group) for group in names]
    if saved_lengths != lengths:
        raise ValueError(
            f"the saved groups must match the optimizer's; saved sizes {saved_lengths}, present sizes {lengths}. "
            "Build the optimizer with the groups it was saved with."
        )
    for group, present in zip(groups, names, strict=True):
        _check_group(group, present, rename)
        for option in _OPTIONS_OF_OTHERS:
            group.pop(option, None)
    saved_ids = [saved_id for group in groups for saved_id in group["params"]]
    flat_names = [name for group in names for name in group]
    states = [
        _copy_state(state_dict["state"].get(saved_id, {}), param, name)
        for saved_id, param, name in zip(saved_ids, params, flat_names, strict=True)
    ]
    _warn_of_casts(state_dict["state"], states, saved_ids)
    return {**state_dict, "state": {}, "param_groups": groups}, states


def _check_group(group: Mapping[str, Any], present: Sequence[str], rename: Mapping[str, str]) -> None:
    version = group.get("noise_version", NOISE_VERSION)
    if version != NOISE_VERSION:
        raise ValueError(
            f"this nemo_sr knows noise version {NOISE_VERSION}; the saved state has version {version}. "
            "Load it with the nemo_sr release that wrote it."
        )
    if group.get("amsgrad"):
        raise ValueError("AdamWSR has no AMSGrad; the saved group has amsgrad=True. Save it without.")
    if "noise_version" not in group:
        return  # from another optimizer: it drew no noise under any name
    for saved, name in zip(group["param_names"], present, strict=True):
        if rename.get(saved, saved) != name:
            raise ValueError(
                f"a saved name must equal the present one, since the noise depends on it; saved {saved!r}, "
                f"present {name!r}. Pass rename={{{saved!r}: {name!r}}} to accept other noise from here on."
            )


def _copy_state(saved: Mapping[str, Any], param: Tensor, name: str) -> dict[str, Any]:
    if not saved:
        return {}
    state: dict[str, Any] = {"step": torch.as_tensor(saved["step"]).to("cpu", torch.int64, copy=True)}
    for moment in ("exp_avg", "exp_avg_sq"):
        value = saved[moment]
        if value.shape != param.shape:
            raise ValueError(
                f"the saved {moment} of {name!r} must have the parameter's shape {tuple(param.shape)}; "
                f"it has {tuple(value.shape)}. Load the state of the same model."
            )
        if value.dtype != param.dtype and param.dtype == torch.bfloat16:
            value = round_nearest(value.detach().float())
        state[moment] = value.detach().to(param.device, param.dtype, copy=True, memory_format=torch.contiguous_format)
    return state


def _warn_of_casts(saved: Mapping[Any, Any], states: Sequence[Mapping[str, Any]], saved_ids: Sequence[Any]) -> None:
    cast = sum(
        saved[saved_id]["exp_avg"].dtype != state["exp_avg"].dtype
        for saved_id, state in zip(saved_ids, states, strict=True)
        if state
    )
    if cast:
        warnings.warn(
            f"the saved moments of {cast} parameters were rounded to nearest to the parameters' dtype.", stacklevel=4
        )
