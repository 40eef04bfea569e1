# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""adamw_sr in the place of the Adam that a program asks Megatron-core for."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import sys
from collections.abc import Iterator
from typing import Any

import torch

from nemo_sr.megatron.cpu_platform import replace
from nemo_sr.megatron.hooks import install
from nemo_sr.megatron.refusals import refuse_unsupported

_REPLACED = ("adam", "adamw_sr")


@contextlib.contextmanager
def adam_replaced(**options: Any) -> Iterator[list[Any]]:
    """Inside the ``with`` block, get_megatron_optimizer makes adamw_sr where a program asks for ``optimizer="adam"``.

    It must be entered before the program imports that function. Every other of Megatron's optimizers is refused when it
    is made, whichever way it is made, so that no run trains with another unseen.

    Args:
        **options: Attributes to set on the program's OptimizerConfig, as nemo_sr.megatron.options has them.
            ``sr_grad_dtype`` is set on its DistributedDataParallelConfig as well, when it wraps a model.

    Yields:
        The optimizers that have been made; the list grows.

    Raises:
        RuntimeError: Megatron-core is of a line that install() refuses.
    """
    install()
    import megatron.core.optimizer as target
    from megatron.core.distributed import DistributedDataParallel
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.optimizer.optimizer import MegatronOptimizer

    made: list[Any] = []
    with contextlib.ExitStack() as stack:
        building = _replacing(target.get_megatron_optimizer, made, options)
        replace(stack, target, {"get_megatron_optimizer": building})
        replace(stack, MegatronOptimizer, {"__init__": _refusing_others(MegatronOptimizer.__init__)})
        replace(stack, OptimizerConfig, {"__post_init__": _refusing_early(OptimizerConfig.__post_init__)})
        if "sr_grad_dtype" in options:
            wrapping = _with_gradients_in(options["sr_grad_dtype"], DistributedDataParallel.__init__)
            replace(stack, DistributedDataParallel, {"__init__": wrapping})
        yield made


def refuse_checkpoint_format(args: Any) -> None:
    """Refuse Megatron-LM's arguments if they would save in a form that adamw_sr does not have.

    Args:
        args: Megatron-LM's arguments.

    Raises:
        ValueError: they would; before the first step, not at the first save.
    """
    saves = getattr(args, "save", None) and not getattr(args, "no_save_optim", False)
    form = getattr(args, "ckpt_format", "torch_dist")
    if not saves or form == "torch_dist" or (form == "torch" and not args.use_distributed_optimizer):
        return
    raise ValueError(
        f"adamw_sr must be saved with --ckpt-format torch_dist, or with torch where there is no distributed optimizer; "
        f"got --ckpt-format {form}{' --use-distributed-optimizer' if args.use_distributed_optimizer else ''}. "
        "Use --ckpt-format torch_dist, which is Megatron-LM's default."
    )


def _replacing(stock: Any, made: list[Any], options: dict[str, Any]) -> Any:
    @functools.wraps(stock)
    def get_megatron_optimizer(config: Any, model_chunks: list[Any], *args: Any, **kwargs: Any) -> Any:
        if config.optimizer not in _REPLACED:
            raise ValueError(
                f"adamw_sr takes the place of optimizer='adam'; the program asks for {config.optimizer!r}. "
                "Ask for adam (in Megatron-LM: --optimizer adam), or start the program without nemo_sr.megatron.run."
            )
        if (theirs := getattr(sys.modules.get("megatron.training.global_vars"), "_GLOBAL_ARGS", None)) is not None:
            refuse_checkpoint_format(theirs)
        # A copy: the program's own configuration stays as it is.
        config = copy.copy(config)
        config.optimizer = "adamw_sr"
        for name, value in options.items():
            setattr(config, name, value)
        optimizer = stock(config, model_chunks, *args, **kwargs)
        made.append(optimizer)
        _report(optimizer, model_chunks)
        return optimizer

    return get_megatron_optimizer


def _refusing_others(stock: Any) -> Any:
    from nemo_sr.megatron.clipping import FoldedClipping

    @functools.wraps(stock)
    def initialize(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(self, FoldedClipping):
            raise ValueError(
                f"all parameters must be trained by adamw_sr; the program makes a {type(self).__name__} of "
                f"{type(optimizer).__name__}. Ask for adam (in Megatron-LM: --optimizer adam), or start the program "
                "without nemo_sr.megatron.run."
            )
        stock(self, optimizer, *args, **kwargs)

    return initialize


def _refusing_early(stock: Any) -> Any:
    @functools.wraps(stock)
    def check(self: Any) -> None:
        # Megatron-core itself stops here without Transformer Engine, with other words.
        refuse_unsupported(self, None, None, rows=["the precision-aware optimizer"])
        stock(self)

    return check


def _with_gradients_in(grad_dtype: str, stock: Any) -> Any:
    signature = inspect.signature(stock)

    @functools.wraps(stock)
    def initialize(*args: Any, **kwargs: Any) -> None:
        ddp_config = signature.bind(*args, **kwargs).arguments["ddp_config"]
        ddp_config.grad_reduce_in_fp32 = grad_dtype == "fp32"
        stock(*args, **kwargs)

    return initialize


def _report(optimizer: Any, model_chunks: list[Any]) -> None:
    """Say, once for all ranks, what the run trains with."""
    if torch.distributed.get_rank() != 0:
        return
    gradients = "FP32" if model_chunks[0].ddp_config.grad_reduce_in_fp32 else "BF16"
    options = [f"gradients {gradients}"]
    for group in optimizer.param_groups[:1]:
        roundings = [f"{moment} {group[f'{moment}_rounding']}" for moment in ("exp_avg", "exp_avg_sq")]
        options = [f"seed {group['seed']}", *roundings, *options]
    print("nemo_sr: adamw_sr takes the place of adam:", ", ".join(options), flush=True)  # noqa: T201
