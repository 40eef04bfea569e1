# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What a run that is about to start will need, in a line."""

from __future__ import annotations

import torch
from megatron.core.models.gpt.gpt_layer_specs import HAVE_TE
from omegaconf import DictConfig

from nemo_sr.planning.planner import Planner, RankBytes
from nemo_sr.planning.stage import Layout, ModelFacts
from nemo_sr.training.regimes import find_regime


def forecast_run(config: DictConfig, vocab_size: int) -> str | None:
    """Return what the fullest rank will need beside what CUDA and libraries take, and what there is.

    Args:
        config: The checked configuration.
        vocab_size: Tokens of the tokenizer.

    Returns:
        A line, which may say that planning failed: that must not keep a run from starting. None where this process can
        no longer plan: it has process groups, or has initialised CUDA.
    """
    if torch.distributed.is_initialized() or torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    try:
        return f"Planned memory: {_forecast(config, vocab_size)}."
    except Exception as error:  # the plan has not been tried with every GPU, nor with every package for one
        return f"Planned memory: not known, since planning failed ({error!r}). Training does not depend on it."


def _forecast(config: DictConfig, vocab_size: int) -> str:
    on_cpu = config.trainer.accelerator == "cpu"
    fused = HAVE_TE and not on_cpu and config.model.transformer_engine is not False
    planner = Planner(ModelFacts(config.model, vocab_size, fused), config.model.global_batch_size)
    regime = find_regime(config.optim)
    largest = planner.largest(Layout.from_config(config), regime, config.optim.grad_dtype or regime.grad_dtypes[0])
    return f"{_describe(largest)}; {_compare(largest.total, config.trainer.devices, on_cpu=on_cpu)}"


def _describe(rank: RankBytes) -> str:
    state = rank.state
    parts = {
        "weights": state.weights,
        "gradients": state.gradients,
        "moments": state.moments,
        "masters": state.masters,
        "activations": rank.activations,
        "communication": rank.communication,
    }
    words = ", ".join(f"{name} {_size(size)}" for name, size in parts.items() if size)
    return f"{_size(rank.total)} on the fullest rank ({words})"


def _compare(total: int, ranks_here: int, *, on_cpu: bool) -> str:
    if on_cpu:
        import psutil

        free = psutil.virtual_memory().available
        needed = total * ranks_here
        verdict = "" if needed <= free else ", which is too little"
        ranks = f"{ranks_here} rank{'s' * (ranks_here > 1)}"
        return f"this machine has {_size(free)} free for {ranks}{verdict}"
    memory = torch.cuda.get_device_properties(0).total_memory
    verdict = "" if total <= memory else ": it will not fit; scripts/plan.py finds a layout that does"
    return f"a GPU has {_size(memory)}{verdict}"


def _size(size: float) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
