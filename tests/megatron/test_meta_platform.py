# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Being any rank of a large job in one process, and leaving no trace of it."""

import logging
import sys

import pytest
import torch
from megatron.core import parallel_state

from nemo_sr.megatron.meta_platform import meta_rank
from nemo_sr.training.weights import one_process

LARGE = {"tensor_parallel": 4, "pipeline_parallel": 3, "data_parallel": 2}


def test_a_process_is_the_first_rank_of_a_stage():
    with meta_rank(**LARGE, stage=2):
        assert torch.distributed.get_world_size() == 24
        assert torch.distributed.get_rank() == 16
        assert parallel_state.is_pipeline_last_stage()
        assert parallel_state.get_tensor_model_parallel_world_size() == 4
        assert parallel_state.get_tensor_model_parallel_rank() == parallel_state.get_data_parallel_rank() == 0


def test_new_tensors_are_on_the_meta_device_in_backward_passes_too():
    seen = []

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, grad):
            seen.extend([torch.ones(2), torch.ones(2, device="cuda"), torch.zeros(2, device=torch.device("cpu"))])
            return 2 * grad

    with meta_rank(**LARGE):
        Double.apply(torch.ones(2, device="cuda", requires_grad=True)).sum().backward()
        assert torch.tensor([7]).item() == 7
    assert [tensor.device.type for tensor in seen] == ["meta"] * 3


def test_a_process_is_afterwards_what_it_was_before():
    def state():
        names = torch.distributed.distributed_c10d._world.group_count
        engine = torch.autograd._engine_run_backward
        return names, sys.excepthook, logging.root.manager.disable, engine, torch.cuda.current_device

    torch.manual_seed(3)
    before, expected = state(), torch.rand(4)
    torch.manual_seed(3)
    with meta_rank(**LARGE), pytest.raises(ZeroDivisionError):
        _ = 1 / 0
    assert state() == before
    assert torch.equal(torch.rand(4), expected)
    assert not parallel_state.is_initialized()
    with one_process(on_cpu=True):
        assert torch.ones(2, device="cuda").sum().item() == 2


def test_a_process_that_has_process_groups_is_refused():
    message = "needs a process without process groups.*is initialised here"
    with one_process(on_cpu=True), pytest.raises(RuntimeError, match=message), meta_rank(**LARGE):
        pass
