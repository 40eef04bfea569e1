# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Mean and variance of SR(x) over all 65,536 noise values, in integers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nemo_sr.experiments import Check, Experiment, Figure, Lab, Report, Table
from nemo_sr.experiments.theory.rounding import ALL_NOISE, round_with

LARGEST = 0x7F7F  # high half of the largest finite BF16


def moments(*, rounding: str, exponents: list[int], mantissas: list[int], low_halves: list[int]) -> list[list[int]]:
    """Sum SR(x) and (SR(x) - x)^2 over all noise, in units of x's last FP32 bit.

    Args:
        rounding: See :func:`nemo_sr.experiments.theory.rounding.round_with`.
        exponents: Exponent fields, 0 to 254; both signs are taken.
        mantissas: The 7 mantissa bits that BF16 keeps.
        low_halves: The 16 bits that it drops.

    Returns:
        For each sign and exponent: sign, exponent, values looked at, those whose mean is not x, and those whose
        variance is not (x - lo)(hi - x), both exactly.
    """
    rows = []
    for sign in (0, 1):
        for exponent in exponents:
            high = torch.tensor([sign << 15 | exponent << 7 | mantissa for mantissa in mantissas])
            bits = ((high[:, None] << 16) | torch.tensor(low_halves)).view(-1)
            if exponent == 254:
                bits = bits[(bits & 0x7FFFFFFF) <= LARGEST << 16]
            mean, variance = zip(*(_exact_moments(rounding, int(b), exponent) for b in bits.tolist()), strict=True)
            rows.append([sign, exponent, len(bits), mean.count(False), variance.count(False)])
    return rows


def _exact_moments(rounding: str, bits: int, exponent: int) -> tuple[bool, bool]:
    unit = 2.0 ** (max(exponent, 1) - 150)  # the distance between FP32 values here; 65,536 of them are BF16's
    x = _float(bits)
    lo, hi = _float(bits & 0xFFFF0000), _float((bits + 0xFFFF) & 0xFFFF0000)
    rounded = round_with(rounding, x.expand(65536), ALL_NOISE)
    distance = (rounded.double() / unit).long() - _units(x, unit)  # below 2^16: its squares sum to less than 2^48
    expected = (_units(x, unit) - _units(lo, unit)) * (_units(hi, unit) - _units(x, unit)) * 65536
    return int(distance.sum()) == 0, int((distance * distance).sum()) == expected


def _float(bits: int) -> Tensor:
    return torch.tensor([bits], dtype=torch.int64).to(torch.int32).view(torch.float32)


def _units(x: Tensor, unit: float) -> int:
    return int(x.double().item() / unit)


def above_largest() -> dict[str, float]:
    """Average SR of a value between the largest finite BF16 and what would follow it."""
    x = _float(LARGEST << 16 | 0x8000)
    rounded = round_with("stochastic", x.expand(65536), ALL_NOISE).double()
    return {"x": x.double().item(), "mean": rounded.mean().item()}


def one_binade(*, rounding: str, points: int) -> list[list[float]]:
    """Return x, the mean of its roundings and their variance, for x from 1 to two ulps above it."""
    unit, rows = 2.0**-23, []
    for low in range(0, 2 * 65536 + 1, 2 * 65536 // points):
        x = _float((0x3F80 << 16) + low)
        rounded = (round_with(rounding, x.expand(65536), ALL_NOISE).double() - 1) / (65536 * unit)
        rows.append([low / 65536, rounded.mean().item(), rounded.var(correction=0).item()])
    return rows


def run(lab: Lab) -> Report:
    """Compute the report."""
    settings: dict[str, Any] = {
        "exponents": lab.choose(quick=[0, 1, 127, 254], full=list(range(255))),
        "mantissas": lab.choose(quick=[0, 0x7F], full=[0, 1, 0x55, 0x7E, 0x7F]),
        "low_halves": lab.choose(quick=[0, 1, 0x8000, 0xFFFF], full=[0, 1, 0x1234, 0x7FFF, 0x8000, 0x8001, 0xFFFF]),
    }
    own, nearest = (lab.part(moments, rounding=name, **settings) for name in ("stochastic", "nearest"))
    curves = {name: lab.part(one_binade, rounding=name, points=64) for name in ("stochastic", "nearest")}
    beyond = lab.part(above_largest)
    total = sum(row[2] for row in own)

    def count(rows: list[list[int]], column: int) -> int:
        return sum(row[column] for row in rows)

    checks = [
        Check("E[SR(x)] = x, exactly: values for which it is not", 0, count(own, 3), count(own, 3) == 0),
        Check("Var[SR(x)] = (x - lo)(hi - x), exactly: values for which not", 0, count(own, 4), count(own, 4) == 0),
        Check(
            "control: with rounding to nearest the mean check fails",
            "> 0 values",
            count(nearest, 3),
            count(nearest, 3) > 0,
        ),
        Check(
            "the mean is kept above the largest finite BF16 too",
            beyond["x"],
            beyond["mean"],
            beyond["x"] == beyond["mean"],
            required=False,
        ),
    ]

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        for name, rows in curves.items():
            x = [row[0] for row in rows]
            left.plot(x, [row[1] - row[0] for row in rows], label=name)
            right.plot(x, [row[2] for row in rows], label=name)
        left.set(xlabel="x, in ulps above 1", ylabel="mean of the rounded x, less x (ulp)")
        right.set(xlabel="x, in ulps above 1", ylabel="variance (ulp²)")
        right.legend()

    summary = f"""
Adding 16 uniform bits to the 16 that BF16 drops carries into the kept half in exactly as many of the 65,536 cases as
the dropped bits count. So the mean of SR(x) is x and its variance (x - lo)(hi - x), where lo and hi are the BF16
values around x: no statistics are needed, all 65,536 noise values are tried and summed in integers (units of x's last
FP32 bit).

Tried here: {total:,} values of both signs, with {len(settings["exponents"])} of the 255 exponents, that of the
subnormals among them. The equality is one for the FP32 x: what FP32 arithmetic lost in computing x is lost. It ends
at the largest finite BF16: above it SR returns that value, so that a finite weight never becomes infinite.
"""
    rows = [[name, total, count(data, 3), count(data, 4)] for name, data in (("stochastic", own), ("nearest", nearest))]
    return Report(
        summary=summary,
        checks=checks,
        tables=[Table("values", "Values that miss", ["rounding", "values", "wrong mean", "wrong variance"], rows)],
        figures=[
            Figure("rounding_moments", "Error of the mean, and variance, over all noise values.", draw, (6.4, 2.6))
        ],
    )


EXPERIMENT = Experiment(
    name="rounding_moments", title="Stochastic rounding keeps the mean, exactly", page="theory", run=run
)
