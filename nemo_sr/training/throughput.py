# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""How fast a run is: tokens, FLOP/s of a rank, and their share of what it could do."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from omegaconf import DictConfig

from nemo_sr.planning.model_flops import count_model_flops, find_peak_flops
from nemo_sr.training.regimes import find_regime


@dataclass(frozen=True)
class Throughput:
    """What a step of a run is worth.

    Args:
        tokens: Tokens in a global batch.
        flops: FLOPs that the model asks for in a step on one rank, a mean over ranks.
        peak_flops: FLOP/s that a rank's device could do; None where it is not known.
    """

    tokens: int
    flops: float
    peak_flops: float | None

    @classmethod
    def of_run(cls, config: DictConfig, vocab_size: int) -> Throughput:
        """Return that of a checked configuration; call it on the device that trains."""
        model, trainer = config.model, config.trainer
        flops = count_model_flops(model, vocab_size) * model.global_batch_size
        peak = None if trainer.peak_tflops_per_gpu is None else trainer.peak_tflops_per_gpu * 1e12
        if peak is None and trainer.accelerator == "gpu":
            peak = find_peak_flops(torch.cuda.get_device_name(), find_regime(config.optim))
        num_ranks = trainer.devices * trainer.num_nodes
        return cls(model.global_batch_size * model.encoder_seq_length, flops / num_ranks, peak)

    def measure(self, seconds: float, share: float = 1.0) -> dict[str, float]:
        """Return the metrics that follow from the seconds of a step; no MFU where no peak is known.

        Args:
            seconds: Of a step.
            share: Of the full global batch that the step took, see ``model.rampup_batch_size``.
        """
        rate = share * self.flops / seconds
        metrics = {
            "train_step_timing in s": seconds,
            "tokens_per_sec": share * self.tokens / seconds,
            "tflops_per_sec_per_gpu": rate / 1e12,
        }
        return metrics if self.peak_flops is None else {**metrics, "mfu": rate / self.peak_flops}
