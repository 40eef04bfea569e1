# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""One rank of a Megatron-core job on torch's meta device: real modules with shapes and no data, in one process.

Process groups are of torch's "fake" backend, whose collectives do nothing, so that a job of any number of ranks can be
entered as any one of them.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from nemo_sr.megatron.cpu_platform import act_in_backward, cpu_platform


class _OnMeta(TorchFunctionMode):
    """Makes every new tensor on the meta device, whatever device is asked for.

    ``torch.tensor`` is left alone: Megatron-core carries a number in one through recomputation and reads it back.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call `func`, on the meta device where it makes a tensor."""
        kwargs = kwargs or {}
        makes_tensor = func in _device_constructors() or kwargs.get("device") is not None
        if makes_tensor and func is not torch.tensor:
            kwargs = {**kwargs, "device": "meta"}
        return func(*args, **kwargs)


def _do_nothing() -> None:
    pass


@contextlib.contextmanager
def meta_rank(*, tensor_parallel: int, pipeline_parallel: int, data_parallel: int, stage: int = 0) -> Iterator[None]:
    """Be the first tensor- and data-parallel rank of a pipeline stage inside the ``with`` block, on the meta device.

    Args:
        tensor_parallel: Ranks that share each layer.
        pipeline_parallel: Ranks that share the layers among them.
        data_parallel: Ranks that hold the same part of the model.
        stage: The pipeline stage, from 0.

    Raises:
        RuntimeError: torch.distributed is in use, or CUDA has been initialised in this process.
    """
    from megatron.core import parallel_state
    from megatron.core import tensor_parallel as mcore_tensor_parallel
    from megatron.core.transformer import utils
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if torch.distributed.is_initialized():
        raise RuntimeError(
            "meta_rank() needs a process without process groups, since it makes its own; torch.distributed is "
            "initialised here. Enter it before init_process_group, or in a process of its own."
        )
    with contextlib.ExitStack() as stack:
        stack.enter_context(cpu_platform())
        stack.enter_context(torch.random.fork_rng(devices=[]))  # Megatron-core seeds torch's generator
        stack.callback(setattr, sys, "excepthook", sys.excepthook)  # init_process_group wraps it
        # What Megatron-core reports of a model that nobody trains.
        stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.WARNING)
        torch.distributed.init_process_group(
            "fake",
            store=FakeStore(),
            rank=tensor_parallel * data_parallel * stage,
            world_size=tensor_parallel * data_parallel * pipeline_parallel,
        )
        stack.callback(torch.distributed.destroy_process_group)
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=tensor_parallel,
            pipeline_model_parallel_size=pipeline_parallel,
            create_gloo_process_groups=False,
        )
        stack.callback(parallel_state.destroy_model_parallel)
        mcore_tensor_parallel.model_parallel_cuda_manual_seed(0)
        for name in ("get_default_causal_mask", "get_sliding_window_causal_mask"):
            # Some lines of Megatron-core cache their masks.
            stack.callback(getattr(getattr(utils, name, None), "cache_clear", _do_nothing))
        act_in_backward(stack, _OnMeta)
        stack.enter_context(_OnMeta())
        yield
