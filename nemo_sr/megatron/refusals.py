# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What adamw_sr does not do under Megatron-core: one table, each row refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

Condition = Callable[[Any, Any, Any], Any]


def _flag(name: str, *, of: int = 0) -> Condition:
    return lambda *configs: getattr(configs[of], name, False)


REFUSALS: dict[str, tuple[Condition, str]] = {
    "fp16": (_flag("fp16"), "set bf16=True and fp16=False"),
    "FP32 training": (
        lambda config, ddp_config, model_config: not (config.bf16 or config.fp16),
        "set bf16=True (FP32 weights leave nothing to round: use optimizer='adam')",
    ),
    "a loss scale": (_flag("loss_scale"), "leave loss_scale unset: BF16 has the exponent range of FP32"),
    "an unset learning rate": (lambda config, ddp_config, model_config: config.lr is None, "set lr"),
    "L2 regularisation": (
        lambda config, ddp_config, model_config: not getattr(config, "decoupled_weight_decay", True),
        "leave decoupled_weight_decay=True: this is AdamW",
    ),
    "FP8 parameter gather": (
        lambda config, ddp_config, model_config: (
            getattr(ddp_config, "fp8_param_gather", False)
            or getattr(config, "fp8_param_gather", False)
            or getattr(config, "reuse_grad_buf_for_mxfp8_param_ag", False)
        ),
        "set fp8_param_gather=False: the BF16 weights are the only copy",
    ),
    "FP4 parameter gather": (_flag("fp4_param_gather", of=1), "set fp4_param_gather=False, for the same reason"),
    "generalized tensor parallelism": (
        lambda config, ddp_config, model_config: getattr(model_config, "gtp_weight_remat_size", 1) > 1,
        "leave tensor_parallel_num_weight_shards unset",
    ),
    "a gradient norm of its own for the heads of multi-token prediction": (
        _flag("mtp_detach_heads", of=2),
        "set mtp_detach_heads=False",
    ),
    "Megatron-FSDP": (
        lambda config, ddp_config, model_config: (
            getattr(ddp_config, "use_megatron_fsdp", False) or getattr(ddp_config, "use_custom_fsdp", False)
        ),
        "set use_megatron_fsdp=False and use_distributed_optimizer=True",
    ),
    "torch's FSDP2": (
        lambda config, ddp_config, model_config: hasattr(ddp_config, "reshard_after_forward"),
        "set use_torch_fsdp2=False and use_distributed_optimizer=True (FSDP2 without Megatron: nemo_sr.AdamWSR)",
    ),
    "optimizer CPU offload": (_flag("optimizer_cpu_offload"), "set optimizer_cpu_offload=False"),
    "optimizer CUDA graphs": (_flag("optimizer_cuda_graph"), "set optimizer_cuda_graph=False"),
    "the layer-wise optimizer": (
        _flag("use_layer_wise_distributed_optimizer"),
        "set use_layer_wise_distributed_optimizer=False",
    ),
    "the precision-aware optimizer": (
        _flag("use_precision_aware_optimizer"),
        "leave use_precision_aware_optimizer=False: adamw_sr keeps its moments in BF16 by itself",
    ),
    "overlap_param_gather_with_optimizer_step": (
        _flag("overlap_param_gather_with_optimizer_step"),
        "set it to False; overlap_param_gather works",
    ),
    "two settings of use_distributed_optimizer": (
        lambda config, ddp_config, model_config: (
            bool(config.use_distributed_optimizer) != bool(getattr(ddp_config, "use_distributed_optimizer", False))
        ),
        "give OptimizerConfig and DistributedDataParallelConfig the same value",
    ),
}


def refuse_unsupported(
    config: Any, ddp_config: Any, model_config: Any, *, rows: Iterable[str] = tuple(REFUSALS)
) -> None:
    """Refuse settings that adamw_sr does not support.

    Args:
        config: Megatron's OptimizerConfig.
        ddp_config: Megatron's DistributedDataParallelConfig.
        model_config: Megatron's TransformerConfig.
        rows: Which rows of the table to look at.

    Raises:
        ValueError: a row of the table applies; the message names it and says what to set.
    """
    for what in rows:
        applies, advice = REFUSALS[what]
        if applies(config, ddp_config, model_config):
            raise ValueError(f"optimizer='adamw_sr' does not support {what}; the configuration asks for it: {advice}.")
