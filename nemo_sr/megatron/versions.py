# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What differs between the lines of Megatron-core that are supported, and a check that the installed one is as known.

=====  ================================================================================================================
line   new in it, as far as it matters here
=====  ================================================================================================================
0.14   the oldest. Local attention refuses windows. No ``dp_reshardable`` format. Checkpoints take regular grids only.
0.15   ``dp_reshardable``; boxes of no grid; plans of checkpoints have a class of Megatron-core's own.
0.16   parameter groups come from overrides; ``no_weight_decay_cond`` and ``scale_lr_cond`` left the factory.
0.17   streams are asked of ``torch.cuda.current_stream``, before of ``default_stream``.
0.18   names other than "adam" and "sgd" are sent to a factory of emerging optimizers before anything else.
0.19   groups are told apart by their learning rates too; gradients of some parameters may have a norm of their own.
=====  ================================================================================================================
"""

from __future__ import annotations

import functools
import inspect
import re
import warnings
from typing import Any

BUILD = "_get_megatron_optimizer_based_on_param_groups"
CHAIN = "ChainedOptimizer"
EMERGING = "_get_megatron_emerging_optimizer"

_LINES = ("0.14", "0.15", "0.16", "0.17", "0.18", "0.19")
Signatures = dict[str, tuple[str, ...]]

# The functions of megatron.core.optimizer that are replaced or relied on, with their parameters, and the first line
# from which on these are so. Empty: the function is not there.
_SINCE: dict[str, Signatures] = {
    "0.14": {
        "get_megatron_optimizer": (
            *("config", "model_chunks", "no_weight_decay_cond", "scale_lr_cond", "lr_mult", "use_gloo_process_groups"),
            *("default_skip_embedding_weight_decay", "grad_comm_pgs", "model_comm_pgs"),
        ),
        BUILD: (
            *("config", "model_chunks", "param_groups", "per_model_buffers", "model_parallel_group"),
            *("data_parallel_group", "data_parallel_group_gloo", "data_parallel_group_idx"),
            "distributed_optimizer_instance_id",
        ),
        EMERGING: (),
        CHAIN: ("chained_optimizers",),
        f"{CHAIN}.step": ("self",),
        f"{CHAIN}.get_grad_norm": ("self",),
        "DistributedOptimizer": (
            *("optimizer", "config", "grad_scaler", "init_state_fn", "model_chunks", "per_model_buffers"),
            *("data_parallel_group", "data_parallel_group_gloo", "data_parallel_group_idx"),
            "distributed_optimizer_instance_id",
        ),
        "DistributedOptimizer.sharded_state_dict": (
            *("self", "model_sharded_state_dict", "is_loading", "sharding_type", "metadata"),
        ),
        "DistributedOptimizer._get_main_param_and_optimizer_states": ("self", "model_param"),
        "DistributedOptimizer._set_main_param_and_optimizer_states": ("self", "model_param", "tensors"),
        "DistributedOptimizer.load_parameter_state_from_dp_reshardable": (),
        "FP32Optimizer": ("optimizer", "config", "init_state_fn"),
        "FP32Optimizer.prepare_grads": ("self",),
    },
    "0.15": {
        "get_megatron_optimizer": (
            *("config", "model_chunks", "no_weight_decay_cond", "scale_lr_cond", "lr_mult", "use_gloo_process_groups"),
            *("default_skip_embedding_weight_decay", "pg_collection"),
        ),
        BUILD: (
            *("config", "model_chunks", "param_groups", "per_model_buffers", "model_parallel_group"),
            *("data_parallel_group", "data_parallel_group_gloo", "data_parallel_group_idx", "intra_dist_opt_group"),
            "distributed_optimizer_instance_id",
        ),
        "DistributedOptimizer.load_parameter_state_from_dp_reshardable": ("self", "state_dict"),
    },
    "0.16": {
        "get_megatron_optimizer": (
            *("config", "model_chunks", "config_overrides", "use_gloo_process_groups", "pg_collection"),
            "dump_param_to_param_group_map",
        ),
        BUILD: (
            *("config", "model_chunks", "param_groups", "per_model_buffers", "model_parallel_group"),
            *("data_parallel_group", "data_parallel_group_gloo", "data_parallel_group_idx", "intra_dist_opt_group"),
            *("distributed_optimizer_instance_id", "pg_collection"),
        ),
    },
    "0.18": {
        BUILD: (
            *("config", "model_chunks", "param_groups", "per_model_buffers", "model_parallel_group"),
            *("data_parallel_group", "data_parallel_group_gloo", "data_parallel_group_idx", "intra_dist_opt_group"),
            *("distributed_optimizer_instance_id", "pg_collection", "skip_megatron_wrapping"),
        ),
        EMERGING: ("config", "model_chunks", "config_overrides", "pg_collection"),
    },
}


def is_since(line: str, version: str | None = None) -> bool:
    """Return whether a version of Megatron-core, the installed one unless given, is of a line ("0.17") or newer."""
    if version is None:
        import megatron.core

        version = megatron.core.__version__
    return _release(version) >= _release(line)


def check_megatron(version: str, target: Any) -> None:
    """Check that Megatron-core is of a line that is known here, and its functions are as they were.

    A newer line is warned of, and must have the functions of the newest known one.

    Args:
        version: Megatron-core's version.
        target: The module megatron.core.optimizer.

    Raises:
        RuntimeError: the line is older than all known ones, or a function is not as it was; the message names it.
    """
    line = _line_of(version)
    if line is None:
        raise RuntimeError(
            f"nemo_sr.megatron.install() supports megatron-core {_LINES[0]} to {_LINES[-1]}; {version} is installed. "
            "Install a supported version."
        )
    if _release(version) > _release(_LINES[-1]):
        warnings.warn(
            f"megatron-core {version} is newer than all that nemo_sr was tested with ({_LINES[0]} to {_LINES[-1]}); "
            f"its functions are checked against those of {line}. Check your results, or install a tested version.",
            stacklevel=3,
        )
    for name, expected in _signatures(line).items():
        function = functools.reduce(lambda owner, part: getattr(owner, part, None), name.split("."), target)
        given = tuple(inspect.signature(function).parameters) if function is not None else ()
        if given != expected:
            raise RuntimeError(
                f"nemo_sr.megatron.install() needs megatron.core.optimizer.{name} as in megatron-core {line}: "
                f"{_describe(expected)}; in version {version} it is there {_describe(given)}. "
                "Install a supported version."
            )


def _describe(parameters: tuple[str, ...]) -> str:
    return f"with the parameters {', '.join(parameters)}" if parameters else "not at all"


def _release(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _line_of(version: str) -> str | None:
    """Return the newest known line that is not newer than a version."""
    return max((line for line in _LINES if _release(line) <= _release(version)), key=_release, default=None)


def _signatures(line: str) -> Signatures:
    found: Signatures = {}
    for since, signatures in _SINCE.items():
        if _release(since) <= _release(line):
            found.update(signatures)
    return found
