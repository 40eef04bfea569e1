# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Rank script: AdamWSR under DDP, FSDP2 and DCP; any failed assertion ends the rank.

Usage (by gloo_ranks.run_ranks): torch_rank.py CHECKPOINT_DIRECTORY
"""

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from rank_end import end_rank
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor

from nemo_sr import AdamWSR, check_replicas

STEPS = 10


def build_model():
    """Uneven shards on two ranks: 5 rows, 7 rows, and 1 row, of which the second rank holds none."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(9, 5), nn.GELU(), nn.Linear(5, 7, bias=False), nn.GELU(), nn.Linear(7, 1)).bfloat16()


def gradients(model, step):
    generator = torch.Generator().manual_seed(step)
    return [(torch.randn(param.shape, generator=generator) * 1e-2).bfloat16() for param in model.parameters()]


def train(model, optimizer, steps):
    for step in steps:
        for grad, param in zip(gradients(model, step), model.parameters(), strict=True):
            if hasattr(param, "device_mesh"):
                grad = distribute_tensor(grad, param.device_mesh, param.placements)
            param.grad = grad
        optimizer.step()


def build(shard):
    model = build_model()
    if shard:
        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return model, AdamWSR(model.named_parameters(), lr=1e-3, seed=4)


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def assert_same(model, optimizer, expected_model, expected_optimizer):
    for (name, param), other in zip(model.named_parameters(), expected_model.parameters(), strict=True):
        assert torch.equal(whole(param.detach()), other.detach()), name
        for moment in ("exp_avg", "exp_avg_sq"):
            mine, theirs = optimizer.state[param][moment], expected_optimizer.state[other][moment]
            assert torch.equal(whole(mine), theirs), (name, moment)
        assert int(optimizer.state[param]["step"]) == STEPS, name


def fsdp2_gives_the_bits_of_the_whole():
    expected = build(shard=False)
    train(*expected, range(STEPS))
    sharded = build(shard=True)
    train(*sharded, range(STEPS))
    assert_same(*sharded, *expected)
    return expected


def dcp_resumes(expected, folder):
    """Saved by two ranks after half of the steps, loaded here, whatever the number of ranks, and finished."""
    if dist.get_world_size() == 2:
        model, optimizer = build(shard=True)
        train(model, optimizer, range(STEPS // 2))
        weights, states = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": states}, checkpoint_id=folder)
    for shard in (True, False) if dist.get_world_size() == 1 else (True,):
        model, optimizer = build(shard)
        with torch.no_grad():
            for param in model.parameters():
                param.zero_()
        weights, states = get_state_dict(model, optimizer)
        loaded = {"model": weights, "optimizer": states}
        dcp.load(loaded, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
        train(model, optimizer, range(STEPS // 2, STEPS))
        assert_same(model, optimizer, *expected)


def ddp_replicas_stay_equal():
    model = nn.parallel.DistributedDataParallel(build_model())
    optimizer = AdamWSR(model.named_parameters(), lr=1e-2, seed=dist.get_world_size())
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(4, 9, generator=generator).bfloat16()).float().square().mean().backward()
        optimizer.step()
    check_replicas(model.named_parameters())
    if dist.get_world_size() == 1:
        return
    with torch.no_grad():
        if dist.get_rank() == 1:
            model.module[2].weight[3, 2] += 1
    drift = r"1 of 5 weights differ: module\.2\.weight \(rank 1 from rank 0\)"
    with pytest.raises(RuntimeError, match=drift):
        check_replicas(model.named_parameters())


def main():
    dist.init_process_group("gloo")
    ddp_replicas_stay_equal()
    expected = fsdp2_gives_the_bits_of_the_whole()
    dcp_resumes(expected, Path(sys.argv[1]))
    end_rank()


if __name__ == "__main__":
    main()
