# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Is training with SR training on a loss with a penalty? Where the mean of many runs of a small network goes."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from nemo_sr.experiments import Check, Experiment, Figure, Lab, Report, Table
from nemo_sr.experiments.theory.effective_gradient import effective_moments
from nemo_sr.experiments.theory.network import NUM_PARAMETERS, Network, predicted_paths
from nemo_sr.experiments.theory.rounding import round_step


def modified_losses(*, rounding: str, draws: int) -> int:
    """Count the steps whose expected (lr/4) ĝ² is not (lr/4) g² + 1/4 |g|(D - lr|g|), in rational numbers.

    ĝ is the effective gradient of one rounded step; w in [1, 2), lr = 2^-12 and all steps exact in FP32.

    Args:
        rounding: See :func:`nemo_sr.experiments.theory.rounding.round_with`.
        draws: Steps to look at.
    """
    lr, gap, wrong = Fraction(1, 1 << 12), Fraction(1, 128), 0
    for draw in range(1, draws + 1):
        grad = Fraction(draw * 7919 % 65536, 2048)
        mean, variance = effective_moments(rounding, 1 + (draw * 37 % 127 + 1) / 128, float(grad), float(lr))
        wrong += lr / 4 * (variance + mean * mean) != lr / 4 * grad * grad + abs(grad) * (gap - lr * abs(grad)) / 4
    return wrong


def network_runs(*, rounding: str, runs: int, log2_lr: int, steps: int, scale: float, seed: int) -> dict[str, Any]:
    """Train the network in many runs side by side from one start.

    The noise of a run moves its weights by far more than the mean is off. So each run carries along what its rounding
    errors do to gradient descent to first order (e <- (1 - lr H) e + error, H at gradient descent's weights); its mean
    is zero whatever the theory, and it is subtracted: what is left has the same mean and a small variance.

    Args:
        rounding: See :func:`nemo_sr.experiments.theory.rounding.round_with`.
        runs: Side by side.
        log2_lr: Of the learning rate.
        steps: To take.
        scale: Of the start.
        seed: Of the noise. Data and start are those of seed 0.

    Returns:
        "mean": of the weights, and "errors": covariance of this mean, both less the first order; "plain": the mean with
        it; "zero": largest distance of the first order's mean from zero in standard errors; "variance":
        of the weights; mean and standard error of the "loss", "gradient" (sum of |g_i|) and "penalty".
    """
    net, lr = Network(seed=0, scale=scale), 2.0**log2_lr
    descent = net.start
    w = net.start.float().expand(runs, NUM_PARAMETERS).contiguous()
    first = torch.zeros(runs, NUM_PARAMETERS)
    identity = torch.eye(NUM_PARAMETERS, dtype=torch.float64)
    for step in range(1, steps + 1):
        shrink = (identity - lr * net.hessian(descent)).float()
        x = w - lr * net.grad(w)
        w = round_step(rounding, x, seed=seed, step=step)
        first = first @ shrink + (w - x)
        descent = descent - lr * net.grad(descent)
    weights, rest = w.double(), (w - first).double()
    spread = (first.std(0) / runs**0.5).clamp(min=1e-12)
    return {
        "mean": rest.mean(0).tolist(),
        "errors": (torch.cov(rest.T) / runs).tolist(),
        "plain": weights.mean(0).tolist(),
        "zero": (first.mean(0).abs() / spread).max().item(),
        "variance": torch.cov(weights.T).tolist(),
        "loss": _mean_and_error(net.loss(weights)),
        "gradient": _mean_and_error(net.grad(weights).abs().sum(-1)),
        "penalty": _mean_and_error(net.penalty(weights, lr)),
    }


def _mean_and_error(values: Tensor) -> list[float]:
    return [values.mean().item(), values.std().item() / len(values) ** 0.5]


def _pool(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Join parts of equally many runs."""
    pooled: dict[str, Any] = {}
    for key in parts[0]:
        values = torch.tensor([part[key] for part in parts], dtype=torch.float64)
        pooled[key] = values.mean(0) if key != "errors" else values.mean(0) / len(parts)
    for key in ("loss", "gradient", "penalty"):
        pooled[key][1] /= len(parts) ** 0.5
    return pooled


def _share(found: dict[str, Any], descent: Tensor, claimed: Tensor) -> tuple[float, float]:
    """Return how much of a claimed shift from gradient descent the mean has, and its standard error: 1 if right."""
    shift = claimed - descent
    length = shift @ shift
    return ((found["mean"] - descent) @ shift / length).item(), (
        (shift @ found["errors"] @ shift) ** 0.5 / length
    ).item()


def run(lab: Lab) -> Report:
    """Compute the report."""
    common: dict[str, Any] = {"log2_lr": -5, "steps": lab.choose(quick=64, full=256), "scale": 3.0}
    theory = lab.part(predicted_paths, seed=0, **common)
    runs, seeds = lab.choose(quick=(512, [0]), full=(4096, [0, 1, 2, 3]))
    found = _pool([lab.part(network_runs, rounding="stochastic", runs=runs, seed=seed, **common) for seed in seeds])
    nearest = _pool([lab.part(network_runs, rounding="nearest", runs=2, seed=0, **common)])
    wrong = lab.part(modified_losses, rounding="stochastic", draws=lab.choose(quick=50, full=1000))
    wrong_nearest = lab.part(modified_losses, rounding="nearest", draws=50)
    total = runs * len(seeds)

    paths = {
        name: torch.tensor(theory[name], dtype=torch.float64) for name in ("descent", "penalised", "mean", "variance")
    }
    shares = {name: _share(found, paths["descent"], paths[name]) for name in ("penalised", "mean")}
    size = {name: (paths[name] - paths["descent"]).norm().item() for name in ("penalised", "mean")}
    size["measured"] = (found["mean"] - paths["descent"]).norm().item()
    size["error"] = found["errors"].diag().sum().sqrt().item()
    size["nearest"] = (nearest["plain"] - paths["descent"]).norm().item()
    variance, claimed = found["variance"], paths["variance"]
    difference = ((variance - claimed).norm() / claimed.norm()).item()
    diagonal = variance.diag()
    sampling = (((diagonal[:, None] * diagonal + variance**2) / total).sum().sqrt() / claimed.norm()).item()
    net = Network(seed=0, scale=common["scale"])
    at_descent = {
        "loss": theory["loss"],
        "gradient": net.grad(paths["descent"]).abs().sum().item(),
        "penalty": net.penalty(paths["descent"], 2.0 ** common["log2_lr"]).item(),
    }
    mean_share, penalty_share = shares["mean"], shares["penalised"]
    gradient, gradient_error = found["gradient"].tolist()
    loss, loss_error = found["loss"].tolist()
    checks = [
        Check("E[(lr/4) ĝ²] = (lr/4) g² + 1/4 |g|(D - lr|g|), exactly: steps where not", 0, wrong, wrong == 0),
        Check("control: to nearest it is not", "> 0 steps", wrong_nearest, wrong_nearest > 0),
        Check(
            "the first order that is subtracted has mean zero: largest of 17 distances, in standard errors",
            "<= 4",
            found["zero"].item(),
            found["zero"].item() <= 4,
            1.0,
        ),
        Check(
            "the mean of the runs has the shift of -1/2 (third derivative : V): share of it (4 standard errors, 0.2)",
            1.0,
            mean_share[0],
            abs(mean_share[0] - 1) <= 4 * mean_share[1] + 0.2 and mean_share[1] < 0.25,
            mean_share[1],
        ),
        Check(
            "the covariance of the runs is that of dV = -(HV + VH) + D|g|: relative difference",
            "<= 0.1 + 2 x sampling",
            difference,
            difference <= 0.1 + 2 * sampling,
            sampling,
        ),
        Check(
            "control: to nearest the weights are far off both: distance from gradient descent",
            f"> 10 x {size['measured']:.2g}",
            size["nearest"],
            size["nearest"] > 10 * size["measured"],
        ),
        Check(
            "the mean of the runs has the shift of the penalty 1/4 sum |g_i|(D_i - lr|g_i|): share of it",
            1.0,
            penalty_share[0],
            abs(penalty_share[0] - 1) <= 4 * penalty_share[1],
            penalty_share[1],
            required=False,
        ),
        Check(
            "runs with SR end with a smaller sum of |g_i| than gradient descent",
            f"< {at_descent['gradient']:.5g}",
            gradient,
            gradient + 4 * gradient_error < at_descent["gradient"],
            gradient_error,
            required=False,
        ),
        Check(
            "runs with SR end with a smaller loss than gradient descent",
            f"< {at_descent['loss']:.5g}",
            loss,
            loss + 4 * loss_error < at_descent["loss"],
            loss_error,
            required=False,
        ),
    ]

    def draw(figure: Any) -> None:
        shift, errors = found["mean"] - paths["descent"], 2 * found["errors"].diag().sqrt()
        both = zip(
            figure.subplots(1, 2, sharey=True), ("mean", "penalised"), ("third derivative : V", "penalty"), strict=True
        )
        for axes, name, label in both:
            axes.axline((0, 0), slope=1, color="k", lw=0.8, ls=":")
            axes.errorbar(paths[name] - paths["descent"], shift, errors, fmt="o", ms=3)
            axes.set(xlabel=f"shift claimed: {label}")
            axes.tick_params(axis="x", labelrotation=30)
        figure.axes[0].set_ylabel("shift of the mean, measured")

    verdict = "In the mean, SR is noise around gradient descent here: the penalty does not move it."
    if abs(penalty_share[0]) > 0.1:
        verdict = "The mean does move in the direction of the penalty here."
    summary = f"""
**What the paper claims, and of what.** We could not read its proof. As others report it, SR acts like training on the
loss plus a penalty. Backward error analysis says that one step with a gradient ĝ follows the flow of L + (lr/4)|ĝ|².
Averaged over the rounding, that is L + (lr/4)|g|² + 1/4 sum |g_i|(D_i - lr|g_i|): the penalty is the noise's part in
the **expected modified loss**, an average over losses, one for each outcome of the noise. For that object the formula
is exact (checked in rational numbers), and its last term does not vanish with lr.

It is not the loss that the **mean of the weights** follows. On a quadratic that mean is gradient descent's, penalty
or not; in general it is moved by -1/2 (third derivative : V). Here {total:,} runs of a network with {NUM_PARAMETERS}
parameters were averaged after {common["steps"]} steps from one start: their mean is {size["measured"]:.1e} ±
{size["error"]:.1e} away from gradient descent; it has **{mean_share[0]:.3f} ± {mean_share[1]:.3f}** of the shift that
third derivative and V claim ({size["mean"]:.1e}) and **{penalty_share[0]:.3f} ± {penalty_share[1]:.4f}** of the shift
of the penalty ({size["penalised"]:.1e}); 1 would be all of it.

At the end the penalty itself is {found["penalty"][0]:.4e} ± {found["penalty"][1]:.1e} on average over the runs and
{at_descent["penalty"]:.4e} for gradient descent; the loss is {loss:.6f} ± {loss_error:.1e} and
{at_descent["loss"]:.6f} (mean and covariance claim {theory["expected loss"]:.6f}); the sum of |g_i| is {gradient:.5f}
± {gradient_error:.1e} and {at_descent["gradient"]:.5f}. {verdict}
"""
    rows = [
        ["mean of the weights, shift from descent", None, size["measured"], size["error"]],
        ["the same: third derivative : V", size["mean"], mean_share[0], mean_share[1]],
        ["the same: penalty", size["penalised"], penalty_share[0], penalty_share[1]],
        ["loss", at_descent["loss"], loss, loss_error],
        ["sum of |g_i|", at_descent["gradient"], gradient, gradient_error],
        ["penalty", at_descent["penalty"], *found["penalty"].tolist()],
    ]
    return Report(
        summary=summary,
        checks=checks,
        tables=[
            Table(
                "network",
                "The network after training",
                [
                    "what",
                    "gradient descent, or size of the claimed shift",
                    "mean of runs, or share of it",
                    "standard error",
                ],
                rows,
            )
        ],
        figures=[
            Figure(
                "regularisation",
                "Shift of the mean weights from gradient descent, measured against claimed, one point a parameter.",
                draw,
                (6.4, 2.8),
            )
        ],
    )


EXPERIMENT = Experiment(
    name="regularisation", title="Where the mean of many runs goes: no penalty", page="theory", run=run
)
