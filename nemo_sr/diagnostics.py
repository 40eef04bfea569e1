# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What rounding does to a run: settings that stall, and a report on the step that is about to be taken."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nemo_sr.noise import EXP_AVG_SQ_STREAM, EXP_AVG_STREAM, WEIGHT_STREAM, noise16_from_key
from nemo_sr.options import check_grad_scale
from nemo_sr.rounding import round_nearest, round_stochastic
from nemo_sr.state import fresh_state
from nemo_sr.update import ParamShard, StepOptions, adamw_float32, chunks

_HALF_ULP = 2.0**-8
"""Half the spacing of BF16 relative to the value, at the lower end of a binade, where it is largest."""

_HALF_ULP_FP32_DECAY = 2.0**-25
"""Below this, 1 - lr*wd is 1 in FP32."""


def warn_of_stalls(group: Mapping[str, Any]) -> None:
    """Warn of settings under which an average or the weight decay stops before it should.

    Args:
        group: Options of a parameter group.

    Source:
        A nearest-rounded average x stops where its step (1 - beta) * |target - x| is below half an ulp of x: up to
        2^-8 / (1 - beta) short of its target.
    """
    for beta, moment in zip(group["betas"], ("exp_avg", "exp_avg_sq"), strict=True):
        if group[f"{moment}_rounding"] != "nearest" or _HALF_ULP / (1 - beta) <= 0.1:
            continue
        if 1 - beta < _HALF_ULP:
            effect = f"it never decays, since 1 - beta = {1 - beta:.2g} is below half an ulp, 2^-8 = 0.0039"
        else:
            effect = f"it stops up to 2^-8 / (1 - {beta:g}) = {_HALF_ULP / (1 - beta):.0%} short of its target"
        warnings.warn(
            f'{moment} is rounded to nearest with beta = {beta:g}: {effect}. Use {moment}_rounding="stochastic", '
            "or a beta of at most 0.96.",
            stacklevel=4,
        )
    decay = float(group["lr"]) * group["weight_decay"]
    if 0 < decay < _HALF_ULP_FP32_DECAY:
        warnings.warn(
            f"weight decay is lost: lr * weight_decay = {decay:.2g} is below 2^-25 = 3e-8, so 1 - lr * weight_decay "
            "is 1 in FP32 (as in torch.optim.AdamW). Raise one of the two, or set weight_decay=0.",
            stacklevel=4,
        )


@dataclass(frozen=True)
class RoundingReport:
    """What rounding does to one tensor in one step; counts and sums, so that reports add up exactly.

    Args:
        num_elements: Elements looked at; those that are or become infinite or NaN count here alone.
        num_changed: Elements whose FP32 result differs from the BF16 value they held.
        num_lost: Of these, elements that rounding to nearest would leave where they are.
        num_moved: Elements that the rounding in use moves.
        sum_update_in_ulps: Sum of |update| / ulp, the ulp being BF16's at the larger of the old and the new value.
    """

    num_elements: int = 0
    num_changed: int = 0
    num_lost: int = 0
    num_moved: int = 0
    sum_update_in_ulps: float = 0.0

    def __add__(self, other: RoundingReport) -> RoundingReport:
        return RoundingReport(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))

    @property
    def share_lost(self) -> float:
        """Share of elements whose update rounding to nearest would lose."""
        return self.num_lost / max(self.num_elements, 1)

    @property
    def share_moved(self) -> float:
        """Share of elements that the step moves."""
        return self.num_moved / max(self.num_elements, 1)

    @property
    def mean_update_in_ulps(self) -> float:
        """Mean of |update| / ulp."""
        return self.sum_update_in_ulps / max(self.num_elements, 1)


def report_step(shard: ParamShard, options: StepOptions) -> dict[str, RoundingReport]:
    """Report on the step that a parameter is about to take, without taking it.

    Args:
        shard: The parameter, in BF16.
        options: Of the step.

    Returns:
        A report for "weight", "exp_avg" and "exp_avg_sq".
    """
    streams = (
        ("weight", "stochastic", WEIGHT_STREAM),
        ("exp_avg", options.exp_avg_rounding, EXP_AVG_STREAM),
        ("exp_avg_sq", options.exp_avg_sq_rounding, EXP_AVG_SQ_STREAM),
    )
    result = {name: RoundingReport() for name, *_ in streams}
    for here, index in chunks(shard.layouts, shard.weight.device):
        weight, exp_avg, exp_avg_sq = shard.weight[here], shard.exp_avg[here], shard.exp_avg_sq[here]
        values = adamw_float32(
            weight, shard.grad[here], exp_avg, exp_avg_sq, options.scalars, maximize=options.maximize
        )
        for (name, rounding, stream), old, value in zip(streams, (weight, exp_avg, exp_avg_sq), values, strict=True):
            nearest = round_nearest(value)
            new = nearest
            if rounding == "stochastic":
                new = round_stochastic(value, noise16_from_key(shard.key, options.step, stream, index))
            result[name] = result[name] + _compare(old, value, nearest, new)
    return result


def add_reports(reports: Iterable[Mapping[str, RoundingReport]]) -> dict[str, RoundingReport]:
    """Add the reports of several parameters, tensor by tensor."""
    total: dict[str, RoundingReport] = {}
    for report in reports:
        for name, part in report.items():
            total[name] = total.get(name, RoundingReport()) + part
    return total


def larger_ulp(old: Tensor, value: Tensor) -> Tensor:
    """Return BF16's ulp at the larger of two values.

    Args:
        old: Shape (n,), float32; likewise the next.
        value: The other one.

    Returns:
        Shape (n,), float64; without meaning where one is not finite.
    """
    # It is 2^(exponent - 7), and 2^-133 among the subnormals.
    _, exponent = torch.frexp(torch.maximum(old.abs(), value.abs()))
    return torch.ldexp(torch.ones_like(old, dtype=torch.float64), (exponent - 8).clamp(min=-133))


def pending_shards(optimizer: Any) -> Iterator[tuple[int, Tensor, ParamShard, StepOptions]]:
    """Yield what the step that is about to be taken works on, BF16 parameters alone.

    Args:
        optimizer: An AdamWSR, between backward and step.

    Yields:
        Number of the group, parameter, its part in the step, options of the step. A parameter without state has zeros.

    Raises:
        TypeError, ValueError: as AdamWSR.step.
    """
    check_grad_scale(optimizer.grad_scale)
    for group, param, grad, options in optimizer._pending(on_host=True):
        if param.dtype == torch.bfloat16:
            state = optimizer.state.get(param) or fresh_state(param, capturable=False)
            number = next(i for i, known in enumerate(optimizer.param_groups) if known is group)
            yield number, param, optimizer._shard(group, param, grad, state), options


def _compare(old: Tensor, value: Tensor, nearest: Tensor, new: Tensor) -> RoundingReport:
    before = old.float()
    finite = value.isfinite() & before.isfinite()
    changed = finite & (value != before)
    ulp = larger_ulp(before, value)
    in_ulps = ((value.double() - before.double()).abs() / ulp).where(finite, 0.0)
    return RoundingReport(
        num_elements=old.numel(),
        num_changed=int(changed.sum()),
        num_lost=int((changed & (nearest == old)).sum()),
        num_moved=int((finite & (new != old)).sum()),
        sum_update_in_ulps=float(in_ulps.sum()),
    )
