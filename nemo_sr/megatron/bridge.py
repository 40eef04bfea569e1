# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The optimizer configuration for Megatron-Bridge, 0.4 or newer, where a configuration may build its optimizer itself.

Bridge's setup_optimizer calls ``optimizer_config.provide(...)`` where there is such a method. Older Bridges call
Megatron-core's get_megatron_optimizer: there ``nemo_sr.megatron.install()`` and ``optimizer="adamw_sr"`` do it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from megatron.core.optimizer import get_megatron_optimizer

from nemo_sr.megatron.factory import OPTIMIZER_NAME
from nemo_sr.megatron.hooks import install

if TYPE_CHECKING:
    OptimizerConfig: Any
else:
    try:
        from megatron.bridge.training.config import OptimizerConfig
    except ModuleNotFoundError as error:
        if error.name != "megatron.bridge":
            raise
        from megatron.core.optimizer import OptimizerConfig


@dataclass
class SROptimizerConfig(OptimizerConfig):  # type: ignore[misc]
    """Megatron-Bridge's OptimizerConfig for adamw_sr, put in the place of ``ConfigContainer.optimizer``.

    It has all fields of Megatron-core's. Without Megatron-Bridge it is a subclass of Megatron-core's own.

    Attributes:
        optimizer: The name, "adamw_sr".
        bf16: Whether weights are BF16, which is required.
        sr_seed: Seed of the rounding noise, in [0, 2**64).
        sr_exp_avg_rounding: "nearest" or "stochastic".
        sr_exp_avg_sq_rounding: "nearest" or "stochastic".
        sr_grad_dtype: "bf16" or "fp32", to insist on that type of gradients. Of these four, None means what the
            environment says (nemo_sr.megatron.options), or the default.
    """

    optimizer: str = OPTIMIZER_NAME
    bf16: bool = True
    sr_seed: int | None = None
    sr_exp_avg_rounding: str | None = None
    sr_exp_avg_sq_rounding: str | None = None
    sr_grad_dtype: str | None = None

    def provide(
        self, model_chunks: Any, config_overrides: Any, use_gloo_process_groups: bool, pg_collection: Any
    ) -> Any:
        """Build the optimizer, with the arguments of Bridge's setup_optimizer.

        Calls ``nemo_sr.megatron.install``, so optimizers of other names stay Megatron's own.

        Args:
            model_chunks: The wrapped model, or the list of its chunks.
            config_overrides: Megatron-core's overrides of parameter groups, or None.
            use_gloo_process_groups: Whether Megatron-core may use gloo groups beside the others.
            pg_collection: Its process groups, or None for the global ones.

        Returns:
            A MegatronOptimizer.

        Raises:
            ValueError: ``optimizer`` is another name, or a setting is not supported.
            RuntimeError: this Megatron-core is not supported.
        """
        if self.optimizer != OPTIMIZER_NAME:
            raise ValueError(
                f"SROptimizerConfig builds {OPTIMIZER_NAME!r}; optimizer={self.optimizer!r} is asked for. "
                "Leave optimizer as it is, or use Megatron-Bridge's own OptimizerConfig."
            )
        install()
        return get_megatron_optimizer(
            config=self,
            model_chunks=model_chunks if isinstance(model_chunks, list) else [model_chunks],
            config_overrides=config_overrides,
            use_gloo_process_groups=use_gloo_process_groups,
            pg_collection=pg_collection,
        )
