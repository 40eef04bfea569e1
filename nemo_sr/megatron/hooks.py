# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""install() and uninstall(): ``adamw_sr`` for every caller of Megatron-core's get_megatron_optimizer.

Two globals that get_megatron_optimizer looks up at each call are exchanged, so a caller that imported the function
earlier is served too. Optimizers of other names go to Megatron's own code.
"""

from __future__ import annotations

import functools
import inspect
from abc import ABCMeta
from typing import Any

_BUILD = "_get_megatron_optimizer_based_on_param_groups"
_CHAIN = "ChainedOptimizer"

# For every supported line of Megatron-core, the parameters of the functions that are replaced or relied on.
_SIGNATURES: dict[str, dict[str, tuple[str, ...]]] = {
    "0.16": {
        "megatron.core.optimizer.get_megatron_optimizer": (
            "config",
            "model_chunks",
            "config_overrides",
            "use_gloo_process_groups",
            "pg_collection",
            "dump_param_to_param_group_map",
        ),
        f"megatron.core.optimizer.{_BUILD}": (
            "config",
            "model_chunks",
            "param_groups",
            "per_model_buffers",
            "model_parallel_group",
            "data_parallel_group",
            "data_parallel_group_gloo",
            "data_parallel_group_idx",
            "intra_dist_opt_group",
            "distributed_optimizer_instance_id",
            "pg_collection",
        ),
        f"megatron.core.optimizer.{_CHAIN}": ("chained_optimizers",),
        "megatron.core.optimizer.DistributedOptimizer": (
            "optimizer",
            "config",
            "grad_scaler",
            "init_state_fn",
            "model_chunks",
            "per_model_buffers",
            "data_parallel_group",
            "data_parallel_group_gloo",
            "data_parallel_group_idx",
            "distributed_optimizer_instance_id",
        ),
        "megatron.core.optimizer.FP32Optimizer": ("optimizer", "config", "init_state_fn"),
        "megatron.core.optimizer.FP32Optimizer.prepare_grads": ("self",),
        f"megatron.core.optimizer.{_CHAIN}.step": ("self",),
        f"megatron.core.optimizer.{_CHAIN}.get_grad_norm": ("self",),
        "megatron.core.optimizer.DistributedOptimizer.sharded_state_dict": (
            "self",
            "model_sharded_state_dict",
            "is_loading",
            "sharding_type",
            "metadata",
        ),
        "megatron.core.optimizer.DistributedOptimizer._get_main_param_and_optimizer_states": ("self", "model_param"),
        "megatron.core.optimizer.DistributedOptimizer._set_main_param_and_optimizer_states": (
            "self",
            "model_param",
            "tensors",
        ),
        "megatron.core.optimizer.DistributedOptimizer.load_parameter_state_from_dp_reshardable": ("self", "state_dict"),
    },
}

_originals: dict[str, Any] = {}
_hooks: dict[str, Any] = {}


def install() -> None:
    """Make ``get_megatron_optimizer(OptimizerConfig(optimizer="adamw_sr", bf16=True, ...), ...)`` work.

    It may be called again, and is undone by :func:`uninstall`.

    Raises:
        RuntimeError: Megatron-core is of a line that is not supported, or one of its functions has changed.
    """
    if _originals:
        return
    import megatron.core
    import megatron.core.optimizer as target

    check_megatron(megatron.core.__version__, target)
    originals = {name: getattr(target, name) for name in (_BUILD, _CHAIN)}
    hooks = {_BUILD: _build_hook(originals[_BUILD]), _CHAIN: _chain_hook(originals[_CHAIN])}
    _originals.update(originals)
    _hooks.update(hooks)
    for name, hook in hooks.items():
        setattr(target, name, hook)


def uninstall() -> None:
    """Undo :func:`install`. Optimizers that were made meanwhile go on working.

    Raises:
        RuntimeError: another program has replaced what install() had put in place; nothing is changed then.
    """
    if not _originals:
        return
    import megatron.core.optimizer as target

    for name, hook in _hooks.items():
        if getattr(target, name) is not hook:
            raise RuntimeError(
                f"uninstall() must find its own hook in megatron.core.optimizer.{name}; "
                f"it found {getattr(target, name)}. Undo the later change first."
            )
    for name, original in _originals.items():
        setattr(target, name, original)
    _originals.clear()
    _hooks.clear()


def check_megatron(version: str, target: Any) -> None:
    """Check that Megatron-core is a line that is known here, and its functions are as they were.

    Args:
        version: Megatron-core's version.
        target: The module megatron.core.optimizer.

    Raises:
        RuntimeError: it is not; the message names the version or the function.
    """
    line = ".".join(version.split(".")[:2])
    if line not in _SIGNATURES:
        raise RuntimeError(
            f"nemo_sr.megatron.install() supports megatron-core {', '.join(_SIGNATURES)}; {version} is installed. "
            "Install a supported version."
        )
    for path, expected in _SIGNATURES[line].items():
        names = path.removeprefix("megatron.core.optimizer.").split(".")
        function = functools.reduce(lambda owner, name: getattr(owner, name, None), names, target)
        given = tuple(inspect.signature(function).parameters) if function is not None else None
        if given != expected:
            raise RuntimeError(
                f"nemo_sr.megatron.install() needs {path} of megatron-core {line} with the parameters {expected}; "
                f"in version {version} it has {given}. Install a supported version."
            )


def _build_hook(stock: Any) -> Any:
    @functools.wraps(stock)
    def build(config: Any, *args: Any, **kwargs: Any) -> Any:
        from nemo_sr.megatron.factory import OPTIMIZER_NAME, build_optimizer

        if config.optimizer != OPTIMIZER_NAME:
            return stock(config, *args, **kwargs)
        return build_optimizer(**inspect.signature(stock).bind(config, *args, **kwargs).arguments)

    return build


def _chain_hook(stock: Any) -> Any:
    class Chooses(ABCMeta):
        """Makes Megatron's chain, or ours where the links are ours; either is an instance of Megatron's."""

        def __call__(cls, chained_optimizers: list[Any], *args: Any, **kwargs: Any) -> Any:
            from nemo_sr.megatron.clipping import FoldedClipping, SRChainedOptimizer

            if cls is not hook:
                return super().__call__(chained_optimizers, *args, **kwargs)
            ours = any(isinstance(link, FoldedClipping) for link in chained_optimizers)
            return (SRChainedOptimizer if ours else stock)(chained_optimizers, *args, **kwargs)

        # By the MRO: issubclass(..., stock) would come back here, to a subclass of it.
        def __instancecheck__(cls, instance: Any) -> bool:
            return stock in type(instance).__mro__ if cls is hook else super().__instancecheck__(instance)

        def __subclasscheck__(cls, subclass: Any) -> bool:
            return stock in subclass.__mro__ if cls is hook else super().__subclasscheck__(subclass)

    hook = Chooses(stock.__name__, (stock,), {"__module__": stock.__module__, "__doc__": stock.__doc__})
    return hook
