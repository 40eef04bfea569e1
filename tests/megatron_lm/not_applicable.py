# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Which of Megatron-LM's tests say nothing about adamw_sr, how each of them ends here, and why."""

from typing import NamedTuple


class NotApplicable(NamedTuple):
    """Tests whose names match `tests`, which end with `outcome` and a message that has `message`."""

    tests: str
    outcome: str
    message: str
    reason: str


NOT_APPLICABLE = [
    NotApplicable(
        r"test_chained_optimizer",
        "failed",
        "Torch not compiled with CUDA enabled",
        "moves the state of torch's own optimizers to a GPU",
    ),
    NotApplicable(
        r"test_precision_aware_fused_adam",
        "passed",
        "",
        "of Transformer Engine's Adam; without Transformer Engine it returns at once",
    ),
    NotApplicable(
        r"test_precision_aware_optimizer\[.*",
        "skipped",
        "",
        "of Transformer Engine's Adam; Megatron-LM skips it itself",
    ),
    NotApplicable(
        r"test_optim_sharded_state_dict\[fp32-.*|TestFP32Optimizer::.*"
        r"|TestOptimizerResharding::test_optimizer_resharding\[.*-False-False-False\]",
        "failed",
        "does not support FP32 training",
        "FP32 training, which adamw_sr refuses",
    ),
    NotApplicable(
        r"test_optimizer_reload_model_params",
        "failed",
        r"torch\.bfloat16 == torch\.float32",
        "expects FP32 masters; adamw_sr has none, and steps the model's weights themselves",
    ),
    NotApplicable(
        r"TestDistributedOptimizer::test_optimizer_common_state_dict\[tp_pp_ep2-False-True-.*",
        "failed",
        "unexpected keyword argument 'k_channels'",
        "multi-latent attention, which needs Transformer Engine",
    ),
    NotApplicable(
        r"TestDistributedOptimizer::test_model_parallel_dp_group_idx_preservation\[.*",
        "skipped",
        r"TP .* \* PP .* > 8",
        "for more than the eight ranks that Megatron-LM runs it on",
    ),
    NotApplicable(
        r"TestOptimizerResharding::test_chained_optimizer_resharding\[.*-False-True-(True|False)\]",
        "failed",
        "Grouped GEMM is not available",
        "experts as Megatron's legacy GroupedMLP, which needs the CUDA package grouped_gemm and is refused",
    ),
]
