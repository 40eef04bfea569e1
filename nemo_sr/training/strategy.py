# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""A thin Lightning strategy: Megatron-core's process groups instead of Lightning's data parallelism."""

from __future__ import annotations

import random

import numpy as np
import torch
from lightning.pytorch.strategies import DDPStrategy
from megatron.core import parallel_state, tensor_parallel
from omegaconf import DictConfig


class MegatronStrategy(DDPStrategy):  # type: ignore[misc]
    """Process groups, seeds and teardown for a :class:`~nemo_sr.training.module.GPTModule`.

    Lightning's own wrapper and its gradient synchronisation are left out: Megatron-core has both.

    Args:
        model: The keys of ``schema.ModelConfig``.
    """

    def __init__(self, model: DictConfig) -> None:
        super().__init__()
        self._model_config = model
        self._failed = False

    def setup_environment(self) -> None:
        """Start torch.distributed, make Megatron-core's groups, and seed everything; a second time, seed only."""
        super().setup_environment()
        if not parallel_state.is_initialized():
            self._make_groups()
        # Pipeline stages draw different dropout masks; Megatron-core's tracker tells tensor-parallel ranks apart.
        seed = self._model_config.seed + 100 * parallel_state.get_pipeline_model_parallel_rank()
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002 - libraries draw from the global state
        torch.manual_seed(seed)
        tensor_parallel.model_parallel_cuda_manual_seed(seed)

    def _make_groups(self) -> None:
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=self._model_config.tensor_model_parallel_size,
            pipeline_model_parallel_size=self._model_config.pipeline_model_parallel_size,
        )

    def configure_ddp(self) -> None:
        """Wrap the module's chunks with Megatron-core's data parallelism."""
        self.lightning_module.wrap_chunks()

    def on_exception(self, exception: BaseException) -> None:
        """Remember that other ranks may be waiting in a collective."""
        self._failed = True

    def teardown(self) -> None:
        """Leave the model-parallel groups, then the process group."""
        self.cluster_environment.teardown()
        self.precision_plugin.teardown()
        self.accelerator.teardown()
        if self._failed or not torch.distributed.is_initialized():
            return
        # gloo's threads need Python's lock to free the tensors of the last collectives. Who destroys a group (Python's
        # own shutdown, where something still refers to it) holds that lock and waits for them; a barrier does not.
        torch.distributed.barrier()
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()
