# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Registers AdamWSR with NeMo's optimizer registry. NeMo is imported by :func:`register` alone."""

from __future__ import annotations

from nemo_sr.optimizer import AdamWSR

NAME = "adamw_sr"


def register() -> None:
    """Register ``AdamWSR`` with NeMo under "adamw_sr". Calling it again does nothing.

    Afterwards ``nemo.core.optim.get_optimizer("adamw_sr")`` and ``optim: {name: adamw_sr}`` in a NeMo model's
    configuration find it, and ``parse_optimizer_args`` finds its parameters by name ("adamw_sr_params",
    "AdamWSR_params") and by ``name: auto``.

    Raises:
        ModuleNotFoundError: NeMo is not installed.
        RuntimeError: another optimizer holds the name.
    """
    try:
        from nemo.core.config import optimizers as nemo_params
        from nemo.core.optim import optimizers as nemo_optimizers
    except ModuleNotFoundError as error:
        if error.name != "nemo":
            raise
        raise ModuleNotFoundError(
            "nemo_sr.register needs NeMo, which is not installed. Install it with pip install 'nemo_sr[nemo]'.",
            name="nemo",
        ) from error

    from nemo_sr._nemo_params import AdamWSRParams

    holder = nemo_optimizers.AVAILABLE_OPTIMIZERS.get(NAME)
    if holder not in (None, AdamWSR):
        raise RuntimeError(
            f"NeMo's optimizer name {NAME!r} must be free or ours; {holder} holds it. Do not register another under it."
        )
    if holder is None:
        nemo_optimizers.register_optimizer(NAME, AdamWSR, AdamWSRParams)
    # NeMo files the parameters under the class name only, but looks `name: auto` up under the registered name.
    if f"{NAME}_params" not in nemo_params.AVAILABLE_OPTIMIZER_PARAMS:
        nemo_params.register_optimizer_params(f"{NAME}_params", AdamWSRParams)
