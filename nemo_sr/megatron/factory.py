# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Builds the optimizer that ``OptimizerConfig(optimizer="adamw_sr")`` asks for."""

from __future__ import annotations

import copy
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.utils import get_model_config

from nemo_sr.megatron.distributed import SRDistributedOptimizer
from nemo_sr.megatron.naming import place_parameters
from nemo_sr.megatron.options import agree_on_options, check_gradients
from nemo_sr.megatron.refusals import refuse_unsupported
from nemo_sr.megatron.replicated import SRReplicatedOptimizer
from nemo_sr.optimizer import AdamWSR

OPTIMIZER_NAME = "adamw_sr"


def build_optimizer(
    config: Any,
    model_chunks: list[Any],
    param_groups: list[dict[str, Any]],
    per_model_buffers: dict[int, list[Any]] | None = None,
    model_parallel_group: Any = None,
    intra_dist_opt_group: Any = None,
    pg_collection: Any = None,
    skip_megatron_wrapping: bool = False,
    **distributed: Any,
) -> SRDistributedOptimizer | SRReplicatedOptimizer:
    """Take the place of Megatron's _get_megatron_optimizer_based_on_param_groups, whose arguments these are.

    Beside Megatron's own fields, the options in nemo_sr.megatron.options are read, and the configuration's attribute
    ``sr_factory`` where present (AdamWSR, or another callable of its signature).

    Raises:
        ValueError: the configuration asks for something that adamw_sr does not support, or an option is not allowed.
    """
    refuse_unsupported(config, model_chunks[0].ddp_config, get_model_config(model_chunks[0]))
    if skip_megatron_wrapping:
        raise ValueError(
            "optimizer='adamw_sr' cannot be a part of the layer-wise optimizer, which asks for it. Use it alone."
        )
    options = agree_on_options(config)
    check_gradients(options, model_chunks[0].ddp_config)
    # A copy: what follows must not show in the caller's configuration.
    config = copy.copy(config)
    config.use_precision_aware_optimizer_no_fp8_or_ds_fp8 = True
    config.exp_avg_dtype = config.exp_avg_sq_dtype = torch.bfloat16
    config.main_params_dtype = torch.bfloat16

    def make_optimizer(groups: list[dict[str, Any]]) -> Any:
        return getattr(config, "sr_factory", AdamWSR)(
            groups,
            lr=config.lr,
            betas=(config.adam_beta1, config.adam_beta2),
            eps=config.adam_eps,
            weight_decay=config.weight_decay,
            seed=options.seed,
            exp_avg_rounding=options.exp_avg_rounding,
            exp_avg_sq_rounding=options.exp_avg_sq_rounding,
            fp32_params="plain",
        )

    places = place_parameters(model_chunks)
    optimizer: SRDistributedOptimizer | SRReplicatedOptimizer
    if config.use_distributed_optimizer:
        optimizer = SRDistributedOptimizer(
            make_optimizer,
            places,
            config,
            param_groups,
            model_chunks=model_chunks,
            per_model_buffers=per_model_buffers,
            **distributed,
        )
        optimizer.grad_stats_parallel_group = (
            intra_dist_opt_group or parallel_state.get_intra_distributed_optimizer_instance_group()
        )
    else:
        optimizer = SRReplicatedOptimizer(make_optimizer, places, config, param_groups)
        optimizer.grad_stats_parallel_group = model_parallel_group
    optimizer.tp_group = _replica_group(param_groups, pg_collection)
    return optimizer


def _replica_group(param_groups: list[dict[str, Any]], pg_collection: Any) -> Any:
    """Return the group over whose ranks a parameter that is not cut by tensor parallelism is repeated.

    The norm counts such parameters on its first rank only. Megatron takes the tensor-parallel group for experts too,
    and would miss parameters where experts have another one.
    """
    if any(group.get("is_expert_parallel") for group in param_groups):
        found = getattr(pg_collection, "expt_tp", None)
        return parallel_state.get_expert_tensor_parallel_group() if found is None else found
    found = getattr(pg_collection, "tp", None)
    return parallel_state.get_tensor_model_parallel_group() if found is None else found
