# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Checks and copies a saved optimizer state before any of it is taken over."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from nemo_sr.binding import canonical_name
from nemo_sr.dtensor import map_local, place_like
from nemo_sr.options import normalize_options
from nemo_sr.rounding import round_nearest

_OPTIONS_OF_OTHERS = ("amsgrad", "foreach", "fused", "differentiable", "decoupled_weight_decay")
_MOMENTS = ("exp_avg", "exp_avg_sq")


def prepare_state_dict(
    state_dict: Mapping[str, Any], present_groups: Sequence[Mapping[str, Any]], rename: Mapping[str, str]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Check a saved state against the present parameter groups, and copy its tensors.

    Args:
        state_dict: What AdamWSR.state_dict or torch.optim.AdamW.state_dict returned; not changed.
        present_groups: The optimizer's param_groups. Options that the saved groups lack are theirs.
        rename: {saved name: present name}.

    Returns:
        The state dict without per-parameter state, for torch's own loading of the groups; and each parameter's state
        ({} where there is none): step int64, moments of the parameter's dtype.

    Raises:
        ValueError: names, groups, shapes, options or noise version do not fit.
        TypeError: an option or a tensor is of an unsupported type.
    """
    missing = [key for key in ("state", "param_groups") if key not in state_dict]
    if missing:
        raise ValueError(
            f"a saved optimizer state has state and param_groups; {', '.join(missing)} is missing. "
            "Pass what an optimizer's state_dict() returned."
        )
    groups = [dict(group) for group in state_dict["param_groups"]]
    sizes, present_sizes = ([len(group["params"]) for group in side] for side in (groups, present_groups))
    if sizes != present_sizes:
        raise ValueError(
            f"the saved groups must match the optimizer's; saved sizes {sizes}, present sizes {present_sizes}. "
            "Build the optimizer with the groups it was saved with."
        )
    _check_rename(rename, groups)
    saved_ids, params, names = [], [], []
    for group, present in zip(groups, present_groups, strict=True):
        saved_ids += group["params"]
        params += present["params"]
        names += present["param_names"]
        _prepare_group(group, present, rename)
    saved = [state_dict["state"].get(saved_id, {}) for saved_id in saved_ids]
    capturable = [group["capturable"] for group in present_groups for _ in group["params"]]
    states = [_copy_state(*four) for four in zip(saved, params, names, capturable, strict=True)]
    rounded = [
        name
        for old, new, name in zip(saved, states, names, strict=True)
        if any(new[key].dtype == torch.bfloat16 != old[key].dtype for key in _MOMENTS if new)
    ]
    if rounded:
        warnings.warn(
            f"the saved moments of {len(rounded)} parameters ({rounded[0]!r}, say) were rounded to nearest to BF16.",
            stacklevel=5,
        )
    return {**state_dict, "state": {}, "param_groups": groups}, states


def _prepare_group(group: dict[str, Any], present: Mapping[str, Any], rename: Mapping[str, str]) -> None:
    if "noise_version" in group:
        _check_names(group, present["param_names"], rename)
    else:  # from another optimizer: it drew no noise under any name
        _check_foreign(group)
        for option in _OPTIONS_OF_OTHERS:
            group.pop(option, None)
    group.pop("param_names", None)
    # How this process runs, not what it computes.
    group["capturable"] = present["capturable"]
    lr = group.get("lr", present["lr"])
    if group["capturable"] and isinstance(present["lr"], Tensor):
        # A graph would repeat a float, and cannot read a tensor on the host.
        dtype = lr.dtype if isinstance(lr, Tensor) else torch.float64
        group["lr"] = torch.as_tensor(lr, dtype=dtype, device=present["lr"].device)
    for option, value in present.items():
        if option != "step":  # the mirror of the steps that the present state has taken
            group.setdefault(option, value)
    group["param_names"] = list(present["param_names"])
    normalize_options(group)


def _check_foreign(group: Mapping[str, Any]) -> None:
    if group.get("amsgrad"):
        raise ValueError("AdamWSR has no AMSGrad; the saved group has amsgrad=True. Train on without it first.")
    if group.get("weight_decay") and group.get("decoupled_weight_decay") is False:
        raise ValueError(
            f"AdamWSR's weight decay is decoupled; the saved group adds weight_decay={group['weight_decay']} to the "
            "gradient, as torch.optim.Adam does. Set it to 0 there, or save a torch.optim.AdamW."
        )


def _check_rename(rename: Mapping[str, str], groups: Sequence[Mapping[str, Any]]) -> None:
    known = {name for group in groups for name in group.get("param_names", ())}
    unknown = sorted(set(rename) - known)
    if unknown:
        raise ValueError(
            f"rename maps saved names to present ones; {unknown} are not among the saved names. Saved are, say, "
            f"{sorted(known)[:5]}."
        )


def _check_names(group: Mapping[str, Any], present: Sequence[str], rename: Mapping[str, str]) -> None:
    saved = group.get("param_names", ())
    for i, (saved_id, name) in enumerate(zip(group["params"], present, strict=True)):
        # torch.distributed.checkpoint puts names where torch has numbers, in the present order; param_names still
        # has the saved order then.
        if isinstance(saved_id, str) and canonical_name(saved_id) == name:
            continue
        old = saved[i] if len(saved) == len(present) else f"{saved_id} of {len(saved)} names"
        if rename.get(old, old) != name:
            raise ValueError(
                f"a saved name must equal the present one, since the noise depends on it; saved {old!r}, "
                f"present {name!r}. Pass rename={{{old!r}: {name!r}}} to accept other noise from here on."
            )


def _copy_state(saved: Mapping[str, Any], param: Tensor, name: str, capturable: bool) -> dict[str, Any]:
    if not saved:
        return {}
    if not {"step", *_MOMENTS} <= set(saved):
        raise ValueError(
            f"the saved state of {name!r} must have step, exp_avg and exp_avg_sq; it has {', '.join(saved)}. "
            "Load the state of an Adam-like optimizer."
        )
    # Through int: under another default dtype torch.as_tensor would round a float step.
    device = param.device if capturable else "cpu"
    state: dict[str, Any] = {"step": torch.tensor(int(saved["step"]), dtype=torch.int64, device=device)}
    for key in _MOMENTS:
        value = saved[key].detach()
        if value.shape != param.shape:
            raise ValueError(
                f"the saved {key} of {name!r} must have the parameter's shape {tuple(param.shape)}; "
                f"it has {tuple(value.shape)}. Load the state of the same model."
            )
        value = place_like(f"the saved {key} of {name!r}", value.to(param.device), param)
        state[key] = map_local(lambda local: _cast_copy(local, param.dtype), value)
    return state


def _cast_copy(value: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype == torch.bfloat16 != value.dtype:
        value = round_nearest(value.float())
    return value.to(dtype, copy=True, memory_format=torch.contiguous_format)
