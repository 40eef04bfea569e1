# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The options of adamw_sr that Megatron-core's OptimizerConfig has no fields for: its attributes, or the environment.

==========================  ===============================  ===================================  ==============
attribute of the config     variable                         values                               unless given
==========================  ===============================  ===================================  ==============
``sr_seed``                 ``NEMO_SR_SEED``                 a whole number in [0, 2**64)         0
``sr_exp_avg_rounding``     ``NEMO_SR_EXP_AVG_ROUNDING``     ``nearest``, ``stochastic``          ``nearest``
``sr_exp_avg_sq_rounding``  ``NEMO_SR_EXP_AVG_SQ_ROUNDING``  ``nearest``, ``stochastic``          ``stochastic``
``sr_grad_dtype``           ``NEMO_SR_GRAD_DTYPE``           ``bf16``, ``fp32``                   as Megatron's
==========================  ===============================  ===================================  ==============

An attribute other than None wins over the variable. The gradients' type is chosen by Megatron's
DistributedDataParallelConfig, before there is an optimizer; ``sr_grad_dtype`` only insists on one.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from nemo_sr.words import ROUNDINGS

_logger = logging.getLogger(__name__)
_FACTORY = "sr_factory"  # an attribute alone: what makes the optimizer, AdamWSR unless given
_GRAD_DTYPES = ("bf16", "fp32")


@dataclass(frozen=True)
class SROptions:
    """What adamw_sr is told beside Megatron's own fields."""

    seed: int
    exp_avg_rounding: str
    exp_avg_sq_rounding: str
    grad_dtype: str | None
    sources: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """Each option with its value and where that came from, for the log."""


def _seed(value: Any) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        value = int(value)
    return value if type(value) is int and 0 <= value < 1 << 64 else None


def _one_of(names: tuple[str, ...]) -> Callable[[Any], str | None]:
    return lambda value: value if isinstance(value, str) and value in names else None


# Each option's reader, which returns None for what is not allowed; what is allowed, in words; the default.
_OPTIONS: dict[str, tuple[Callable[[Any], Any], str, Any]] = {
    "seed": (_seed, "a whole number in [0, 2**64)", 0),
    "exp_avg_rounding": (_one_of(ROUNDINGS), f"one of {', '.join(ROUNDINGS)}", "nearest"),
    "exp_avg_sq_rounding": (_one_of(ROUNDINGS), f"one of {', '.join(ROUNDINGS)}", "stochastic"),
    "grad_dtype": (_one_of(_GRAD_DTYPES), f"one of {', '.join(_GRAD_DTYPES)}", None),
}
VARIABLES = {f"sr_{name}": f"NEMO_SR_{name.upper()}" for name in _OPTIONS}
"""{attribute of OptimizerConfig: environment variable}."""


def read_options(config: Any, environment: Mapping[str, str] | None = None) -> SROptions:
    """Read the options from a configuration's attributes and, where it has none, the environment.

    Args:
        config: Megatron's OptimizerConfig.
        environment: Variables by name; None: this process's.

    Raises:
        ValueError: a value is not allowed, or an attribute ``sr_...`` is unknown; the message names it.
    """
    if unknown := [name for name in vars(config) if name.startswith("sr_") and name not in (*VARIABLES, _FACTORY)]:
        raise ValueError(
            f"an OptimizerConfig for adamw_sr may have the attributes {', '.join(VARIABLES)}; it has {unknown[0]}. "
            "Correct the name, or take it away."
        )
    found: dict[str, Any] = {}
    sources = []
    for name, (read, allowed, default) in _OPTIONS.items():
        attribute = f"sr_{name}"
        source, given = f"OptimizerConfig.{attribute}", getattr(config, attribute, None)
        if given is None:
            source = f"the environment variable {VARIABLES[attribute]}"
            given = (os.environ if environment is None else environment).get(VARIABLES[attribute])
        found[name] = default if given is None else read(given)
        if given is not None and found[name] is None:
            raise ValueError(f"{source} must be {allowed}; got {given!r}. Correct it, or leave it unset for {default}.")
        value = "the DDP buffers'" if found[name] is None else found[name]
        sources.append(f"{name}={value} ({'default' if given is None else source})")
    return SROptions(**found, sources=tuple(sources))


def agree_on_options(config: Any) -> SROptions:
    """Read the options on all ranks, and check that they are the same: replicas that draw other noise drift apart.

    Collective. Rank 0 logs them, once where several optimizers have the same.

    Raises:
        ValueError: they are not, or one of them is not allowed; the same on all ranks.
    """
    mine: SROptions | str
    try:
        mine = read_options(config)
    except ValueError as error:
        mine = str(error)
    everyone: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(everyone, mine)
    for rank, theirs in enumerate(everyone):
        if isinstance(theirs, str):
            raise ValueError(f"rank {rank}: {theirs}")
        if theirs != everyone[0]:
            raise ValueError(
                f"all ranks must have the same options of adamw_sr; rank 0 has {everyone[0]}, rank {rank} {theirs}. "
                f"Set the attributes of OptimizerConfig, or {', '.join(VARIABLES.values())}, alike on all nodes."
            )
    options: SROptions = everyone[0]
    if torch.distributed.get_rank() == 0:
        _log_once(f"adamw_sr: {', '.join(options.sources)}")
    return options


@functools.cache
def _log_once(line: str) -> None:
    _logger.info(line)


def check_gradients(options: SROptions, ddp_config: Any) -> None:
    """Check that Megatron's gradients have the type that is asked for.

    Args:
        options: The options.
        ddp_config: Megatron's DistributedDataParallelConfig.

    Raises:
        ValueError: they have not.
    """
    given = "fp32" if ddp_config.grad_reduce_in_fp32 else "bf16"
    if options.grad_dtype not in (None, given):
        raise ValueError(
            f"gradients must be {options.grad_dtype}, as sr_grad_dtype (or {VARIABLES['sr_grad_dtype']}) says; "
            f"the model's buffers were made for {given}. Set DistributedDataParallelConfig("
            f"grad_reduce_in_fp32={options.grad_dtype == 'fp32'}) before the model is wrapped (in Megatron-LM, BF16 "
            "takes --grad-reduce-in-bf16)."
        )
