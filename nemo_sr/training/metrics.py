# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Every metric that a run logs: one name for the console's source, TensorBoard, Weights & Biases and CSV."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LAYER_GROUPS = ("embedding", "attention", "mlp", "norm", "output", "other")
"""Groups of layers that telemetry tells apart."""

METRICS = {
    "reduced_train_loss": "nats per token: the mean of the step's global batch",
    "val_loss": "nats per token: the mean of the validation batches",
    "val_ppl": "exp(val_loss)",
    "lr": "learning rate of the step",
    "grad_norm": "2-norm of the gradients before clipping",
    "consumed_samples": "samples that the run has seen",
    "skipped_steps": "steps that were skipped since the run began, their gradients not being finite",
    "loss_spikes": "spikes of the loss since the run began",
    "train_step_timing in s": "seconds a step, a mean since the last entry, without validation",
    "tokens_per_sec": "tokens a second of all ranks together",
    "tflops_per_sec_per_gpu": "TFLOP/s of a rank, by the model's own count of operations",
    "mfu": "model FLOPs utilization: that as a share of the GPU's peak, where the peak is known",
    "peak_memory_mib": "the most that rank 0 has held so far, in MiB: on its GPU, or resident on the host",
    "sr/share_lost": "share of the weights whose update rounding to nearest would lose",
    "sr/share_moved": "share of the weights that the step moves",
    "sr/update_in_ulps": "mean of |update| / ulp over all weights",
    **{f"sr/update_in_ulps/{group}": f"the same, {group} alone" for group in LAYER_GROUPS},
    "sr/noise_to_update": "2-norm of the rounding errors over that of the updates",
    "sr/bias_along_update": "mean rounding error along the update over its standard error",
    "sr/bias_from_zero": "mean rounding error away from zero over its standard error",
    "sr/exp_avg_sq_share_lost": "share of second moments whose change rounding to nearest would lose",
    "sr/exp_avg_sq_shortfall": "how far a second moment rounded to nearest would be below the exact one, as a share",
}
"""Name and meaning of each metric. Names without a slash are NeMo's where it has one."""


SETS = ("val_loss", "val_ppl")
"""Metrics that each set of ``data.validation_sets`` has as well, under val_loss/NAME and val_ppl/NAME."""


def log_metrics(trainer: Any, metrics: Mapping[str, float], step: int) -> None:
    """Give metrics to every logger of a trainer, on rank 0.

    Args:
        trainer: The Lightning trainer.
        metrics: Values by their names in :data:`METRICS`.
        step: The optimizer step that they belong to, 1 for the first.

    Raises:
        ValueError: a name is not in the list.
    """
    unknown = {name for name in metrics if name not in METRICS and name.partition("/")[0] not in SETS}
    if unknown:
        raise ValueError(f"a metric must be listed in METRICS; {sorted(unknown)} are not. Add them with their meaning.")
    if trainer.is_global_zero:
        for logger in trainer.loggers:
            logger.log_metrics(dict(metrics), step=step)
