# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""install() and uninstall(): ``adamw_sr`` for every caller of Megatron-core's get_megatron_optimizer.

The globals that get_megatron_optimizer looks up at each call are exchanged, so a caller that imported the function
earlier is served too. Optimizers of other names go to Megatron's own code.
"""

from __future__ import annotations

import copy
import functools
import inspect
from abc import ABCMeta
from typing import Any

from nemo_sr.megatron.versions import BUILD, CHAIN, EMERGING, check_megatron

# Where a configuration on its way through Adam's path says what it was made for.
_ASKED_FOR = "_nemo_sr_asked_for"

_originals: dict[str, Any] = {}
_hooks: dict[str, Any] = {}


def install() -> None:
    """Make ``get_megatron_optimizer(OptimizerConfig(optimizer="adamw_sr", bf16=True, ...), ...)`` work.

    It may be called again, and is undone by ``uninstall``.

    Raises:
        RuntimeError: Megatron-core is too old, or one of its functions has changed.
    """
    if _originals:
        return
    import megatron.core
    import megatron.core.optimizer as target

    check_megatron(megatron.core.__version__, target)
    makers = {BUILD: _build_hook, CHAIN: _chain_hook, EMERGING: _emerging_hook}
    originals = {name: getattr(target, name) for name in makers if hasattr(target, name)}
    hooks = {name: makers[name](original) for name, original in originals.items()}
    _originals.update(originals)
    _hooks.update(hooks)
    for name, hook in hooks.items():
        setattr(target, name, hook)


def uninstall() -> None:
    """Undo ``install``. Optimizers that were made meanwhile go on working.

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


def _build_hook(stock: Any) -> Any:
    @functools.wraps(stock)
    def build(config: Any, *args: Any, **kwargs: Any) -> Any:
        from nemo_sr.megatron.factory import OPTIMIZER_NAME, build_optimizer

        if getattr(config, _ASKED_FOR, config.optimizer) != OPTIMIZER_NAME:
            return stock(config, *args, **kwargs)
        config = copy.copy(config)
        config.optimizer = OPTIMIZER_NAME
        return build_optimizer(**inspect.signature(stock).bind(config, *args, **kwargs).arguments)

    return build


def _emerging_hook(stock: Any) -> Any:
    """Send ``adamw_sr`` back to the path of Megatron's Adam, which ends in ``_build_hook``."""
    # As it is now: what replaces it later sends its calls here.
    from megatron.core.optimizer import get_megatron_optimizer

    @functools.wraps(stock)
    def build_emerging(
        config: Any, model_chunks: list[Any], config_overrides: Any = None, pg_collection: Any = None
    ) -> Any:
        from nemo_sr.megatron.clipping import FoldedClipping
        from nemo_sr.megatron.factory import OPTIMIZER_NAME

        if config.optimizer != OPTIMIZER_NAME:
            return stock(config, model_chunks, config_overrides, pg_collection)
        routed = copy.copy(config)
        routed.optimizer = "adam"
        setattr(routed, _ASKED_FOR, OPTIMIZER_NAME)
        # What would need gloo groups, Megatron's legacy checkpoints, is refused anyway.
        made = get_megatron_optimizer(
            routed, model_chunks, config_overrides, use_gloo_process_groups=False, pg_collection=pg_collection
        )
        if not isinstance(made, FoldedClipping) or not all(isinstance(link, FoldedClipping) for link in made._parts()):
            raise RuntimeError(
                f"get_megatron_optimizer must make optimizers of nemo_sr for 'adamw_sr'; it made {made}. "
                "Install a version of megatron-core that nemo_sr supports."
            )
        return made

    return build_emerging


def _chain_hook(stock: Any) -> Any:
    class Chooses(ABCMeta):
        """Makes Megatron's chain, or ours where the links are ours; either is an instance of Megatron's."""

        def __call__(cls, chained_optimizers: list[Any], *args: Any, **kwargs: Any) -> Any:
            from nemo_sr.megatron.chain import SRChainedOptimizer
            from nemo_sr.megatron.clipping import FoldedClipping

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
