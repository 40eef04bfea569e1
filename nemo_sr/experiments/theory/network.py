# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""A network with 17 parameters, its loss on fixed data, and paths of its weights that theories predict."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nemo_sr.experiments.theory.rounding import ulp

NUM_INPUTS, NUM_HIDDEN, NUM_SAMPLES = 2, 4, 32
NUM_PARAMETERS = NUM_HIDDEN * (NUM_INPUTS + 2) + 1


class Network:
    """tanh(x W1 + b1) w2 + b2 and half its mean squared error, for any number of weight vectors side by side.

    Args:
        seed: Of data and start.
        scale: Standard deviation of the start.
    """

    def __init__(self, *, seed: int, scale: float) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = 2 * torch.rand(NUM_SAMPLES, NUM_INPUTS, generator=generator, dtype=torch.float64) - 1
        noise = 0.1 * torch.randn(NUM_SAMPLES, generator=generator, dtype=torch.float64)
        self.t = torch.sin(3 * self.x[:, 0]) * self.x[:, 1] + noise
        self.start = (scale * torch.randn(NUM_PARAMETERS, generator=generator)).bfloat16().double()

    def loss(self, w: Tensor) -> Tensor:
        """Return the loss. Args: w: shape (..., 17). Returns: shape (...)."""
        first = NUM_HIDDEN * NUM_INPUTS
        w1 = w[..., :first].reshape(*w.shape[:-1], NUM_HIDDEN, NUM_INPUTS)
        b1, w2, b2 = w[..., first : first + NUM_HIDDEN], w[..., first + NUM_HIDDEN : -1], w[..., -1:]
        hidden = torch.tanh(torch.einsum("...hi,ni->...nh", w1, self.x.to(w.dtype)) + b1[..., None, :])
        error = torch.einsum("...nh,...h->...n", hidden, w2) + b2 - self.t.to(w.dtype)
        return (error * error).mean(-1) / 2

    def grad(self, w: Tensor) -> Tensor:
        """Return the gradient of the loss, shape (..., 17)."""
        w = w.detach().requires_grad_()
        return torch.autograd.grad(self.loss(w).sum(), w)[0]

    def hessian(self, w: Tensor) -> Tensor:
        """Return the second derivatives at one weight vector, shape (17, 17)."""
        found: Tensor = torch.func.hessian(self.loss)(w)
        return found

    def third(self, w: Tensor, variance: Tensor) -> Tensor:
        """Return the third derivative contracted with a matrix, shape (17,)."""
        found: Tensor = torch.func.grad(lambda u: (torch.func.hessian(self.loss)(u) * variance).sum())(w)
        return found

    def penalty(self, w: Tensor, lr: float) -> Tensor:
        """Return 1/4 sum |g_i|(D_i - lr|g_i|), shape (...)."""
        g = self.grad(w).abs()
        return (g * (ulp(w) - lr * g)).sum(-1) / 4

    def penalty_grad(self, w: Tensor, lr: float) -> Tensor:
        """Return the gradient of the penalty at one weight vector, D held fixed. Shape (17,)."""
        g = self.grad(w)
        return self.hessian(w) @ (g.sign() * (ulp(w) - 2 * lr * g.abs())) / 4


def predicted_paths(*, seed: int, scale: float, log2_lr: int, steps: int) -> dict[str, Any]:
    """Follow gradient descent, gradient descent on the penalised loss, and the equations for mean and covariance.

    The equations are those of small learning rates in their form for a given lr: m - lr (grad + 1/2 third : V), and
    (1 - lr H) V (1 - lr H) + diag(f (D - f)), f being what lr|g| has beyond whole ulps.

    Args:
        seed: Of data and start.
        scale: Of the start.
        log2_lr: Of the learning rate.
        steps: To take.

    Returns:
        "descent", "penalised", "mean": weights, and "variance": the covariance; the losses "loss" of descent, and
        "expected loss" of mean and covariance.
    """
    net, lr = Network(seed=seed, scale=scale), 2.0**log2_lr
    descent = penalised = mean = net.start
    variance = torch.zeros(NUM_PARAMETERS, NUM_PARAMETERS, dtype=torch.float64)
    identity = torch.eye(NUM_PARAMETERS, dtype=torch.float64)
    for _ in range(steps):
        descent = descent - lr * net.grad(descent)
        penalised = penalised - lr * (net.grad(penalised) + net.penalty_grad(penalised, lr))
        grad, shrink, gap = net.grad(mean), identity - lr * net.hessian(mean), ulp(mean)
        part = torch.remainder(lr * grad.abs(), gap)
        mean = mean - lr * (grad + net.third(mean, variance) / 2)
        variance = shrink @ variance @ shrink + torch.diag(part * (gap - part))
    return {
        "descent": descent.tolist(),
        "penalised": penalised.tolist(),
        "mean": mean.tolist(),
        "variance": variance.tolist(),
        "loss": net.loss(descent).item(),
        "expected loss": (net.loss(mean) + (net.hessian(mean) * variance).sum() / 2).item(),
    }
