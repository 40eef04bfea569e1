# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Megatron-core's optimizer for a strategy, and the torch optimizer that Lightning and NeMo's schedulers see."""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import torch
from megatron.core.optimizer import ChainedOptimizer, OptimizerConfig, get_megatron_optimizer
from nemo.core.optim import get_optimizer, prepare_lr_scheduler
from omegaconf import DictConfig

import nemo_sr
import nemo_sr.megatron
from nemo_sr.training.nearest import AdamWBF16
from nemo_sr.training.regimes import find_regime, scaled_rates


def build_optimizer(optim: DictConfig, chunks: list[Any], *, clip_grad: float, default_seed: int) -> Any:
    """Return Megatron-core's optimizer for ``optim.name``.

    Args:
        optim: The keys of ``schema.OptimConfig``.
        chunks: This rank's model, wrapped in Megatron-core's DistributedDataParallel.
        clip_grad: Largest global norm of the gradients; 0 for none.
        default_seed: Seed of the rounding noise if ``optim.seed`` is null.
    """
    optimizer = get_megatron_optimizer(optimizer_config(optim, clip_grad=clip_grad, default_seed=default_seed), chunks)
    if find_regime(optim).has_own_optimizer:
        return optimizer
    return FiniteChainedOptimizer(optimizer.chained_optimizers)


def optimizer_config(optim: DictConfig, *, clip_grad: float, default_seed: int) -> OptimizerConfig:
    """Return Megatron-core's options for ``optim.name``; the arguments are those of :func:`build_optimizer`."""
    regime = find_regime(optim)
    lr, decoupled_lr = scaled_rates(optim)
    half = regime.weights == "bf16"
    config = OptimizerConfig(
        optimizer="adam",
        lr=lr,
        min_lr=optim.sched.min_lr,
        # Always, so that embedding and output layer have groups of their own: a resumed run may then set, change or
        # drop optim.decoupled_lr.
        decoupled_lr=decoupled_lr,
        weight_decay=optim.weight_decay,
        adam_beta1=optim.betas[0],
        adam_beta2=optim.betas[1],
        adam_eps=optim.eps,
        clip_grad=clip_grad,
        bf16=half,
        params_dtype=torch.bfloat16 if half else torch.float32,
        use_distributed_optimizer=True,
    )
    if regime.has_own_optimizer:
        _without_master(config, optim, default_seed)
    return config


def build_schedule(optimizer: torch.optim.Optimizer, sched: DictConfig, max_steps: int) -> dict[str, Any]:
    """Return NeMo's learning rate schedule, as Lightning takes it.

    Args:
        optimizer: What it steers, its groups at their highest rate.
        sched: The keys of ``schema.SchedConfig``.
        max_steps: Steps that it spans.
    """
    options = {**sched, "max_steps": max_steps}
    if sched.name != "CosineAnnealing":
        del options["constant_steps"]  # 0, see validate; only that one takes it
    scheduled: dict[str, Any] = prepare_lr_scheduler(optimizer, options)
    return scheduled


class FiniteChainedOptimizer(ChainedOptimizer):  # type: ignore[misc]
    """Megatron-core's chain, which skips a step whose gradient norm is not finite.

    Without a loss scale the stock chain would write NaN into every weight. ``adamw_sr`` has a chain that skips.
    """

    def get_grad_norm(self) -> Any:
        """Return the 2-norm of all gradients, the same on every rank."""
        self._norm = super().get_grad_norm()
        return self._norm

    def step_with_ready_grads(self) -> bool:
        """Step all optimizers, or none; return which."""
        return math.isfinite(self._norm) and bool(super().step_with_ready_grads())


def _without_master(config: Any, optim: DictConfig, default_seed: int) -> None:
    """Turn `config` into one for BF16 weights and moments, stepped by the class that NeMo's registry has."""
    nemo_sr.register()
    nemo_sr.megatron.install()
    config.optimizer = "adamw_sr"
    config.sr_seed = default_seed if optim.seed is None else optim.seed
    config.sr_exp_avg_rounding = optim.exp_avg_rounding or "nearest"
    config.sr_exp_avg_sq_rounding = optim.exp_avg_sq_rounding or "stochastic"
    config.sr_factory = AdamWBF16 if optim.name == "adamw_bf16" else get_optimizer(optim.name)


def mark_decoupled_(groups: list[dict[str, Any]]) -> None:
    """Mark the parameter groups of embedding and output layer, as megatron-core did before 0.16.

    Since then it writes their rate into the group's max_lr alone, and would confuse such groups when it loads.

    Args:
        groups: Megatron-core's parameter groups, made with a decoupled_lr.
    """
    for group in groups:
        group["is_decoupled_lr"] = bool(group.get("is_decoupled_lr")) or group.get("default_config") is False


def set_rates_(groups: list[dict[str, Any]], optim: DictConfig, lr: float) -> None:
    """Set learning rate and weight decay of each parameter group for one step.

    NeMo's schedules know nothing of Megatron-core's ``wd_mult`` (0 for biases and norms), ``lr_mult`` and decoupled
    learning rate, and some give all groups the first one's rate. So they schedule one rate, and everything else follows
    from it and from the configuration: doing it twice, or after a load, changes nothing. The multipliers stay in the
    group: Megatron-core finds a saved group by them.

    Args:
        groups: Megatron-core's parameter groups, marked by :func:`mark_decoupled_`.
        optim: The keys of ``schema.OptimConfig``.
        lr: What the schedule says.
    """
    for group in groups:
        rate = _decoupled_rate(optim, lr) if group["is_decoupled_lr"] else lr
        group["lr"] = rate * group.get("lr_mult", 1.0)
        group["weight_decay"] = optim.weight_decay * group.get("wd_mult", 1.0)


def _decoupled_rate(optim: DictConfig, lr: float) -> float:
    """Return the rate of embedding and output layer: a line through (0, 0), (min_lr, decoupled_min_lr), (lr, ...)."""
    low = optim.sched.min_lr
    high, decoupled_high = scaled_rates(optim)
    if optim.decoupled_min_lr is None:
        return float(lr * (decoupled_high / high))
    if lr < low:
        return float(lr * (optim.decoupled_min_lr / low))
    return float(optim.decoupled_min_lr + (lr - low) / (high - low) * (decoupled_high - optim.decoupled_min_lr))


class TorchViewOfMegatron(torch.optim.Optimizer):
    """A torch optimizer in front of Megatron-core's, so that Lightning counts its steps and NeMo schedules it.

    It has one parameter group, without parameters, whose ``lr`` a schedule sets. Each step gives Megatron-core's groups
    the rates that follow from it.

    Args:
        megatron: What ``get_megatron_optimizer`` returned for a configuration with a decoupled_lr.
        optim: The keys of ``schema.OptimConfig``.
    """

    def __init__(self, megatron: Any, optim: DictConfig) -> None:
        # Optimizer.__init__ would refuse a group without parameters.
        self.megatron = megatron
        self.defaults: dict[str, Any] = {}
        lr = scaled_rates(optim)[0]
        self.param_groups = [{"params": [], "lr": lr, "initial_lr": lr}]
        self.state = defaultdict(dict)  # Megatron-core moves and saves its own
        self.grad_norm = 0.0
        self.update_successful = True
        self._optim = optim
        for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
            setattr(self, hooks, OrderedDict())
        mark_decoupled_(megatron.param_groups)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients that the optimizer holds; the model's buffers are the module's to clear."""
        self.megatron.zero_grad(set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Set the rates, clip, step, and gather the weights.

        ``grad_norm`` is the norm before clipping; ``update_successful`` is false where it was not finite, which left
        the weights as they were.
        """
        loss = None if closure is None else closure()
        set_rates_(self.megatron.param_groups, self._optim, self.param_groups[0]["lr"])
        self.update_successful, grad_norm, _ = self.megatron.step()
        self.grad_norm = math.nan if grad_norm is None else float(grad_norm)
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: Megatron-core's distributed checkpoint holds the state."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Do nothing: see :meth:`state_dict`."""
