# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Turns an FP32 or mixed-precision AdamW run into a BF16 run with stochastic rounding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nemo_sr.optimizer import AdamWSR
from nemo_sr.rounding import round_nearest


def convert_to_sr(
    model: nn.Module,
    adamw: torch.optim.Optimizer,
    *,
    lr_scale: float = 2.0,
    masters: Mapping[str, Tensor] | None = None,
    **options: Any,
) -> AdamWSR:
    """Cast a model to BF16 in place, and carry its AdamW's groups and moments over to AdamWSR.

    Weights and moments are rounded to nearest, once. Groups keep their betas, eps and weight decay; their learning
    rates are multiplied by ``lr_scale``. Build the scheduler anew on the result: raise its maximum by ``lr_scale`` too
    and keep its minimum.

    Args:
        model: The model; its parameters are FP32, or BF16 with FP32 masters.
        adamw: A torch.optim.AdamW, or any optimizer with decoupled decay and its state's names.
        lr_scale: Factor on the learning rates. The paper finds that SR takes 2 to 4 times the maximum of mixed
            precision: the variance of its effective gradient falls as the learning rate rises.
        masters: {parameter's name: its FP32 master}, where the optimizer holds masters in place of the parameters.
        **options: Passed to ``AdamWSR`` (seed, roundings, backend).

    Returns:
        The new optimizer, over the model's own parameters, named as ``model.named_parameters()`` names them.

    Raises:
        ValueError: a parameter of the optimizer is not in the model, or its decay is not decoupled. The model is
            unchanged then.

    Source:
        arXiv 2502.20566, its advice on the learning rate.
    """
    named = dict(model.named_parameters())
    owner = {tensor: name for name, tensor in (named if masters is None else masters).items()}
    groups: list[dict[str, Any]] = []
    sources: dict[str, Tensor] = {}
    for group in adamw.param_groups:
        if isinstance(adamw, torch.optim.Adam) and group["weight_decay"] and not group.get("decoupled_weight_decay"):
            raise ValueError(
                "the optimizer's decay must be decoupled, as AdamW's is; this one adds weight_decay to the gradient. "
                "Set its weight_decay to 0, or convert from torch.optim.AdamW."
            )
        unknown = [tuple(tensor.shape) for tensor in group["params"] if owner.get(tensor) not in named]
        if unknown:
            raise ValueError(
                f"every tensor of the optimizer must be a parameter of the model, or one of masters; "
                f"{len(unknown)} are not, of shapes {unknown[:5]}. Pass masters={{name: tensor}}."
            )
        names = [owner[tensor] for tensor in group["params"]]
        sources.update(zip(names, group["params"], strict=True))
        kept = {key: group[key] for key in ("betas", "eps", "weight_decay")}
        groups.append({"params": names, "lr": float(group["lr"]) * lr_scale, **kept})
    values = {name: round_nearest(tensor.detach().float()) for name, tensor in sources.items()}
    model.bfloat16()
    with torch.no_grad():
        for name, value in values.items():
            model.get_parameter(name).copy_(value)
    for group in groups:
        group["params"] = [(name, model.get_parameter(name)) for name in group["params"]]
    optimizer = AdamWSR(groups, **options)
    for name, source in sources.items():
        _carry_state(adamw.state.get(source, {}), optimizer, model.get_parameter(name))
    return optimizer


def _carry_state(old: Mapping[str, Any], optimizer: AdamWSR, param: Tensor) -> None:
    if not old:
        return
    optimizer.initialize_state(param)
    state = optimizer.state[param]
    state["step"].fill_(int(old["step"]))
    for moment in ("exp_avg", "exp_avg_sq"):
        state[moment].copy_(round_nearest(old[moment].detach().float()))
