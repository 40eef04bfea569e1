# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Operations that a model asks for, whatever a layout or a kernel makes of them, and what a GPU could do at most."""

from __future__ import annotations

from omegaconf import DictConfig

from nemo_sr.models.architectures import ARCHITECTURES
from nemo_sr.planning.throughput import GPUS
from nemo_sr.training.regimes import Regime


def count_model_flops(model: DictConfig, vocab_size: int) -> int:
    """Count the FLOPs of the matrix products of one sample's forward and backward pass.

    A query meets every token of the sample, in a local layer of GPT-Neo those of its window: what a causal mask saves
    is not subtracted, and what recomputation adds is not counted, as is usual for the model FLOPs utilization.

    Args:
        model: The keys of ``schema.ModelConfig``.
        vocab_size: Columns of the output layer.

    Source:
        Chowdhery et al., "PaLM", appendix B.
    """
    length, hidden, layers = model.encoder_seq_length, model.hidden_size, model.num_layers
    ffn = 4 * hidden if model.ffn_hidden_size is None else model.ffn_hidden_size
    local_window = ARCHITECTURES[model.architecture].window_size
    num_local = 0 if local_window is None else layers // 2
    window = min(model.window_size or local_window or length, length)
    weights = layers * (4 * hidden * hidden + 2 * hidden * ffn) + hidden * vocab_size
    keys = (layers - num_local) * length + num_local * window
    forward = 2 * length * (weights + 2 * keys * hidden)
    return int(3 * forward)


def find_peak_flops(gpu_name: str, regime: Regime) -> float | None:
    """Return the FLOP/s that a GPU's data sheet promises a strategy's matrix products, without sparsity.

    Args:
        gpu_name: What ``torch.cuda.get_device_name`` returns.
        regime: The strategy.

    Returns:
        FLOP/s of one GPU; None for a GPU that is not known here, as for the slower forms of the H100 and H200.
    """
    sold_as = {"A100": "a100", "H100 80GB HBM3": "h100", "H200": "h100"}  # the H200 has the H100's cores
    known = next((gpu for words, gpu in sold_as.items() if words in gpu_name and "NVL" not in gpu_name), None)
    if known is None:
        return None
    in_bf16 = regime.weights == "bf16" or regime.autocast
    return GPUS[known].bf16_flops if in_bf16 else GPUS[known].fp32_flops
