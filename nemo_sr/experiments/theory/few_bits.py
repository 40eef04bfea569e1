# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The bias of noise with fewer bits than are dropped, in integers over all dropped bits and all noise values."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import torch

from nemo_sr.experiments import Check, Experiment, Figure, Lab, Report, Table
from nemo_sr.experiments.theory.rounding import ALL_NOISE, round_with

_BASE = 0x3F80 << 16  # 1.0, and the values up to the next


def few_bit_bias(*, rounding: str, noise_bits: int, dropped_bits: int, offset: int = 0) -> dict[str, Any]:
    """Round all values between two BF16 neighbours whose last 16 - dropped_bits bits are 0, with few noise bits.

    Args:
        rounding: See :func:`nemo_sr.experiments.theory.rounding.round_with`.
        noise_bits: N; the noise takes the highest N of its 16 bits, the others are 0.
        dropped_bits: D >= N.
        offset: Added to the noise.

    Returns:
        In 65,536ths of an ulp, the mean over all noise less the value: "total" of all values, "largest", and all of
        them ("biases") where there are 256 at most; and their "number".
    """
    kept = torch.arange(1 << dropped_bits) << (16 - dropped_bits)
    x = (_BASE + kept).to(torch.int32).view(torch.float32)
    ups = torch.zeros(len(kept), dtype=torch.int64)
    for noise in range(1 << noise_bits):
        given = torch.full((len(kept),), (noise << (16 - noise_bits)) + offset, dtype=torch.int32)
        ups += round_with(rounding, x, given) > 1
    biases = (ups << (16 - noise_bits)) - kept
    return {
        "total": int(biases.sum()),
        "largest": int(biases.abs().max()),
        "number": len(kept),
        "biases": biases.tolist() if len(kept) <= 256 else [],
    }


def _mean(found: dict[str, Any]) -> Fraction:
    return Fraction(found["total"], 65536 * found["number"])


def run(lab: Lab) -> Report:
    """Compute the report."""
    pairs = lab.choose(
        quick=[(1, 16), (4, 16), (8, 16), (4, 8), (8, 8)],
        full=[(1, 16), (2, 16), (4, 16), (6, 16), (8, 16), (10, 16), (12, 16), (4, 8), (8, 8), (8, 12), (12, 12)],
    )
    rows, wrong_mean, wrong_largest, means = [], 0, 0, {}
    for noise_bits, dropped_bits in pairs:
        found = lab.part(few_bit_bias, rounding="stochastic", noise_bits=noise_bits, dropped_bits=dropped_bits)
        mean, largest = _mean(found), Fraction(found["largest"], 65536)
        expected = (Fraction(1, 1 << dropped_bits) - Fraction(1, 1 << noise_bits)) / 2
        wrong_mean += mean != expected
        wrong_largest += largest != -2 * expected
        means[noise_bits, dropped_bits] = mean
        numbers = [str(value) for value in (expected, mean, -2 * expected, largest)]
        rows.append(
            [noise_bits, dropped_bits, *numbers, "pass" if (mean, largest) == (expected, -2 * expected) else "FAIL"]
        )
    # 16 on 16 is 2^32 cases.
    own = lab.part(sixteen_on_sixteen, rounding="stochastic", stride=lab.choose(quick=1024, full=1))
    control = _mean(lab.part(few_bit_bias, rounding="nearest", noise_bits=4, dropped_bits=16))
    centred = _mean(lab.part(few_bit_bias, rounding="stochastic", noise_bits=8, dropped_bits=16, offset=128))
    curves = {n: lab.part(few_bit_bias, rounding="stochastic", noise_bits=n, dropped_bits=8) for n in (1, 4, 8)}
    checks = [
        Check(
            "mean bias over all dropped bits is (2^-D - 2^-N)/2 ulp, exactly: pairs where not",
            0,
            wrong_mean,
            wrong_mean == 0,
        ),
        Check(
            "the bias of one x goes up to 2^-N - 2^-D ulp, exactly: pairs where not",
            0,
            wrong_largest,
            wrong_largest == 0,
        ),
        Check(
            "16 noise bits on 16 dropped bits have no bias, for any x: values that have",
            0,
            own["biased"],
            own["biased"] == 0,
        ),
        Check(
            "control: rounding to nearest has not the mean bias of 4 noise bits",
            f"not {means[4, 16]}",
            str(control),
            control != means[4, 16],
        ),
        Check(
            "half a noise unit added to 8-bit noise leaves 2^-17 ulp of mean bias",
            str(Fraction(1, 1 << 17)),
            str(centred),
            centred == Fraction(1, 1 << 17),
        ),
    ]

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for noise_bits, found in curves.items():
            biases = [bias / 65536 for bias in found["biases"]]
            axes.step([i / 256 for i in range(256)], biases, where="post", label=f"{noise_bits} bits")
        axes.set(xlabel="8 dropped bits, in ulp", ylabel="mean of the rounded x, less x (ulp)")
        axes.legend()

    per_step = float(means[8, 16])
    summary = f"""
Hardware and some optimizers add fewer noise bits than the rounding drops. With N noise bits in the highest places of
D dropped bits, the noise never reaches the lowest D - N of them: they are truncated. So the mean bias is (2^-D -
2^-N)/2 of an ulp, towards zero, averaged over uniform dropped bits, and up to 2^-N - 2^-D for a single x. nemo_sr
uses 16 bits on 16 and has none.

8 bits on 16 pull every weight towards zero by {abs(per_step):.2e} ulp a step on average, in each step and always the
same way: like a weight decay of up to {abs(per_step) * 2**-7:.1e} a step that nobody asked for. Half a unit added to
the noise, {centred}, takes nearly all of it away on average, though not for one x.
"""
    columns = [
        "noise bits N",
        "dropped bits D",
        "mean bias claimed (ulp)",
        "measured",
        "largest claimed (ulp)",
        "measured",
        "verdict",
    ]
    return Report(
        summary=summary,
        checks=checks,
        tables=[Table("pairs", "Bias by number of bits, as exact fractions", columns, rows)],
        figures=[
            Figure("few_bits", "Bias of few noise bits on 8 dropped bits; 8 bits on 8 have none.", draw, (5, 2.8))
        ],
    )


def sixteen_on_sixteen(*, rounding: str, stride: int) -> dict[str, int]:
    """Count the values, every ``stride``-th between two neighbours, whose mean over all noise is another value."""
    noise = ALL_NOISE
    biased = 0
    for low in range(0, 65536, stride):
        x = torch.tensor([_BASE + low], dtype=torch.int32).view(torch.float32).expand(65536)
        biased += int((round_with(rounding, x, noise) > 1).sum()) != low
    return {"biased": biased, "values": 65536 // stride}


EXPERIMENT = Experiment(name="few_bits", title="Noise with fewer bits than are dropped", page="theory", run=run)
