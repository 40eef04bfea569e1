# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Reports of what rounding does to a run, every so many steps, and advice at its end."""

from __future__ import annotations

import sys
from typing import Any

from lightning.pytorch.callbacks import Callback
from omegaconf import DictConfig
from tqdm import tqdm

from nemo_sr.training.advice import Observed, give_advice
from nemo_sr.training.metrics import log_metrics
from nemo_sr.training.regimes import find_regime
from nemo_sr.training.rounding_probe import RoundingProbe
from nemo_sr.training.rounding_sums import RoundingSums


class TelemetryCallback(Callback):  # type: ignore[misc]
    """Logs, and prints on rank 0, what rounding does to a sample of the weights.

    For the strategies that keep no FP32 weights (adamw_sr, adamw_bf16); the others lose no update. What is trained does
    not change by a bit. docs/telemetry.md has the formulas.

    Args:
        config: The whole configuration, whose ``trainer.telemetry_every_n_steps`` says how often, or not at all.
    """

    def __init__(self, config: DictConfig) -> None:
        self._optim = config.optim
        self._regime = find_regime(config.optim)
        self._every_n_steps = config.trainer.telemetry_every_n_steps
        self._probe: RoundingProbe | None = None
        self._sums: RoundingSums | None = None
        self._shortfall = 0.0
        self._num_troubles = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Find the weights."""
        if self._every_n_steps is not None and self._regime.has_own_optimizer:
            self._probe = RoundingProbe(pl_module.optimizers().optimizer.megatron.chained_optimizers)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Have the probe look at a step that is to be reported."""
        step = trainer.global_step + 1
        if self._probe is not None and step % self._every_n_steps == 0:
            self._probe.watch(step)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log and print the report. A step that was skipped has none."""
        self._num_troubles = pl_module.spikes.total + pl_module.skipped.total
        step = trainer.global_step
        if self._probe is None or step % self._every_n_steps:
            return
        if not pl_module.optimizers().optimizer.update_successful:
            return
        sums, self._shortfall = self._probe.collect()
        self._sums = sums if self._sums is None else self._sums + sums
        metrics = {**sums.metrics(), "sr/exp_avg_sq_shortfall": self._shortfall}
        log_metrics(trainer, metrics, step)
        if trainer.is_global_zero:
            tqdm.write(f"step {step}/{trainer.max_steps}  {describe_rounding(metrics)}", file=sys.stdout)
            sys.stdout.flush()

    def advice(self) -> list[str]:
        """Return what follows from the reports of this start, a line each; nothing where there were none."""
        if self._every_n_steps is not None and not self._regime.has_own_optimizer:
            return [f"No update is lost with optim.name={self._optim.name}, which keeps weights in FP32: no telemetry."]
        if self._sums is None:
            return []
        observed = Observed(
            self._sums,
            self._shortfall,
            self._regime.rounds_stochastically,
            self._optim.exp_avg_sq_rounding or ("stochastic" if self._regime.rounds_stochastically else "nearest"),
            self._num_troubles,
        )
        return give_advice(observed)


def describe_rounding(metrics: dict[str, float]) -> str:
    """Return the report's numbers on a line."""
    shortfall = metrics["sr/exp_avg_sq_shortfall"]
    return (
        f"rounding: {metrics['sr/share_lost']:.1%} of updates below half an ulp  "
        f"moved {metrics['sr/share_moved']:.1%}  |update| {metrics['sr/update_in_ulps']:.3g} ulp  "
        f"noise/update {metrics['sr/noise_to_update']:.3g}  "
        f"bias {metrics['sr/bias_along_update']:+.1f} along the update, {metrics['sr/bias_from_zero']:+.1f} from zero "
        f"(standard errors)  exp_avg_sq to nearest {abs(shortfall):.1%} {'short' if shortfall >= 0 else 'long'}"
    )
