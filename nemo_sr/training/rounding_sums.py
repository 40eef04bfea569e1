# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Sums over a sample of the weights, of what a step's rounding does to them, and the numbers that follow from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from nemo_sr.diagnostics import larger_ulp
from nemo_sr.training.metrics import LAYER_GROUPS

SUMS = (
    "elements",  # each sampled weight stands for those of its cell in this column and the six after it
    "lost",
    "moved",
    "in_ulps",
    "squared_errors",
    "squared_updates",
    "exp_avg_sq_lost",
    "error_along_update",  # in ulps; from here on a sampled weight counts once
    "error_from_zero",
    "squared_errors_in_ulps",
)
"""What is summed, one column each."""


def layer_group(name: str) -> int:
    """Return the place in LAYER_GROUPS of a parameter with a canonical name of Megatron's."""
    if "norm" in name:  # also where a linear layer has the norm in it
        group = "norm"
    elif name.startswith("embedding."):
        group = "embedding"
    elif name.startswith("output_layer."):
        group = "output"
    else:
        parts = {"self_attention": "attention", "cross_attention": "attention", "mlp": "mlp"}
        group = next((group for part, group in parts.items() if f".{part}." in name), "other")
    return LAYER_GROUPS.index(group)


@dataclass(frozen=True)
class Sampled:
    """Sampled elements of a rank's weights, before the step and as the step computes them. All of shape (n,).

    Args:
        counts: How many elements each stands for, int64; 0 for those of other ranks.
        groups: 1 in the row of its LAYER_GROUPS, else 0. Shape (6, n), float64.
        old: The weight before the step, float32.
        exact: The weight after the step, before rounding, float32.
        old_exp_avg_sq: The second moment before the step, float32.
        exact_exp_avg_sq: After it, before rounding, float32.
    """

    counts: Tensor
    groups: Tensor
    old: Tensor
    exact: Tensor
    old_exp_avg_sq: Tensor
    exact_exp_avg_sq: Tensor

    def sums(self, new: Tensor) -> Tensor:
        """Sum up, for each group of layers. What is or becomes infinite or NaN is left out.

        Args:
            new: The weights after the step. Shape (n,), bfloat16.

        Returns:
            A row for each of LAYER_GROUPS, a column for each of SUMS. Float64, on the same device.
        """
        finite = self.old.isfinite() & self.exact.isfinite() & (self.counts > 0)
        count = self.counts.double() * finite
        old, exact = self.old.double(), self.exact.double()
        update, error = exact - old, new.double() - exact
        ulp = larger_ulp(self.old, self.exact)
        in_ulps = error / ulp
        # torch's cast rounds to nearest; it differs from round_nearest in what it makes of NaN.
        lost = (update != 0) & (self.exact.bfloat16().float() == self.old)
        moment, nearest = self.old_exp_avg_sq, self.exact_exp_avg_sq.bfloat16().float()
        columns = (
            count,
            count * lost,
            count * (new.float() != self.old),
            count * update.abs() / ulp,
            count * error.square(),
            count * update.square(),
            count * ((self.exact_exp_avg_sq != moment) & (nearest == moment)),
            in_ulps * update.sign() * finite,
            in_ulps * exact.sign() * finite,
            in_ulps.square() * finite,
        )
        return self.groups @ torch.stack(columns).where(finite, 0.0).t()


@dataclass(frozen=True)
class RoundingSums:
    """Sums of the whole model, over one step or several.

    Args:
        table: What :meth:`Sampled.sums` returns, added up over ranks, on the host.
    """

    table: Tensor

    def __add__(self, other: RoundingSums) -> RoundingSums:
        return RoundingSums(self.table + other.table)

    def total(self, name: str) -> float:
        """Return a sum over all groups of layers."""
        return float(self.table[:, SUMS.index(name)].sum())

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the weights, and of the second moment's step, under their names."""
        elements = self.total("elements")
        metrics = {
            "sr/share_lost": _ratio(self.total("lost"), elements),
            "sr/share_moved": _ratio(self.total("moved"), elements),
            "sr/update_in_ulps": _ratio(self.total("in_ulps"), elements),
            "sr/noise_to_update": math.sqrt(_ratio(self.total("squared_errors"), self.total("squared_updates"))),
            "sr/bias_along_update": self._over_standard_error("error_along_update"),
            "sr/bias_from_zero": self._over_standard_error("error_from_zero"),
            "sr/exp_avg_sq_share_lost": _ratio(self.total("exp_avg_sq_lost"), elements),
        }
        for group, row in zip(LAYER_GROUPS, self.table.tolist(), strict=True):
            sums: Mapping[str, float] = dict(zip(SUMS, row, strict=True))
            if sums["elements"]:
                metrics[f"sr/update_in_ulps/{group}"] = sums["in_ulps"] / sums["elements"]
        return metrics

    def _over_standard_error(self, name: str) -> float:
        # Errors of different elements are independent, and their mean is 0 if rounding is right.
        return _ratio(self.total(name), math.sqrt(self.total("squared_errors_in_ulps")))


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
