# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Rank script: takes each stand-in of the CPU platform away in turn, and writes as JSON what then fails.

Usage (by gloo_ranks.run_ranks): platform_rank.py OUTPUT.json DIRECTORY
"""

import itertools
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from rank_end import end_rank

import nemo_sr.megatron
from nemo_sr.megatron.versions import is_since


def trains(gpt, cases, directory):
    model = gpt.build_model(overlap=True)
    gpt.set_weights(model)
    gpt.train(model, gpt.build_optimizer(model), 1)


def trains_two_instances_of_the_optimizer(gpt, cases, directory):
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig

    inner = gpt.build_model().module
    gpt.start_groups(1, 1, num_distributed_optimizer_instances=2)
    config = DistributedDataParallelConfig(
        use_distributed_optimizer=True, overlap_grad_reduce=True, num_distributed_optimizer_instances=2
    )
    gpt.accumulate_gradients(DistributedDataParallel(inner.config, config, inner), 0)


def trains_with_megatrons_own_adam(gpt, cases, directory):
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    for distributed in (True, False):
        model = gpt.build_model(distributed=distributed)
        config = OptimizerConfig(optimizer="adam", lr=1e-3, bf16=True, use_distributed_optimizer=distributed)
        gpt.train(model, get_megatron_optimizer(config, [model]), 1)


def recomputes(gpt, cases, directory):
    gpt.accumulate_gradients(gpt.build_model(recompute=True), 0)


def pipelines(gpt, cases, directory):
    gpt.accumulate_gradients(gpt.build_model(pp=2), 0)


def trains_in_mixed_precision(gpt, cases, directory):
    for train in ("", "linear_fc2"):  # the second: the other layers are frozen
        found = cases.autocast(gpt, train=train)
        assert {kind for seen in found["True"].values() for product in seen for kind in product} == {"torch.bfloat16"}


def trains_experts(gpt, cases, directory):
    gpt.accumulate_gradients(gpt.build_model(experts=4, ep=2, bias=False), 0)


def resumes(gpt, cases, directory):
    kinds = ("dp_reshardable", "fully_reshardable") if is_since("0.15") else ("fully_reshardable",)
    for kind in kinds:
        resumed = cases.resumed(gpt, {}, {}, kind, f"{directory}/{next(_numbers)}")
        assert resumed["found"] == resumed["expected"]


def draws_dropout_masks(gpt, cases, directory):
    from megatron.core.tensor_parallel import random

    drawn = []
    for seed in range(2):
        torch.manual_seed(seed)  # the masks must depend on their own seed alone
        random.model_parallel_cuda_manual_seed(1, force_reset_rng=True)
        for _ in range(2):
            state = torch.get_rng_state()
            with random.get_cuda_rng_tracker().fork():
                drawn.append(torch.rand(4))
            assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(drawn[0], drawn[2])
    assert torch.equal(drawn[1], drawn[3])
    assert not torch.equal(drawn[0], drawn[1])


def broadcasts_data(gpt, cases, directory):
    from megatron.core.tensor_parallel.data import broadcast_data

    gpt.build_model(tp=2)
    data = {"text": torch.arange(4)}
    assert torch.equal(broadcast_data(["text"], data, torch.int64)["text"], data["text"])


_numbers = itertools.count()
PROGRAMS = [
    trains,
    trains_two_instances_of_the_optimizer,
    trains_with_megatrons_own_adam,
    recomputes,
    pipelines,
    trains_in_mixed_precision,
    trains_experts,
    draws_dropout_masks,
    broadcasts_data,
    resumes,
]


def stand_ins(before, owners):
    """Every name that is another object inside the platform, as (label, owner, name, what it was)."""
    for owner, old in zip(owners, before, strict=True):
        for name, value in sorted(vars(owner).items()):
            if old.get(name, _ABSENT) is not value:
                yield f"{getattr(owner, '__name__', owner)}.{name}", owner, name, old.get(name, _ABSENT)


_ABSENT = object()


def failure(gpt, cases, directory):
    """The first program that fails, and how; None if all run."""
    try:
        for program in PROGRAMS:
            program(gpt, cases, directory)
    except Exception as error:
        return f"{program.__name__}: {type(error).__name__}: {(str(error) or '-').splitlines()[0]}"
    return None


def main(output, directory, rows):
    import megatron_cases as cases
    import tiny_gpt as gpt

    dist.init_process_group("gloo")
    nemo_sr.megatron.install()
    found = {"none": failure(gpt, cases, directory)}
    for label, owner, name, old in rows:
        if name == "is_available":
            # What torch's own function asks is answered as a driver with one GPU would.
            torch._C._cuda_getDeviceCount = lambda: 1
            found["none, with a GPU"] = failure(gpt, cases, directory)
        stand_in = vars(owner)[name]
        delattr(owner, name) if old is _ABSENT else setattr(owner, name, old)
        found[label] = failure(gpt, cases, directory)
        setattr(owner, name, stand_in)
        if hasattr(torch._C, "_cuda_getDeviceCount"):
            del torch._C._cuda_getDeviceCount
    platform = sys.modules["nemo_sr.megatron.cpu_platform"]  # the package has a function of that name
    rewrites = platform._CudaMeansCpu.__torch_function__
    platform._CudaMeansCpu.__torch_function__ = lambda self, func, types, args=(), kwargs=None: func(
        *args, **(kwargs or {})
    )
    found["device='cuda'"] = failure(gpt, cases, directory)
    platform._CudaMeansCpu.__torch_function__ = rewrites
    found["none again"] = failure(gpt, cases, directory)
    if dist.get_rank() == 0:
        Path(output).write_text(json.dumps(found, indent=1))
    end_rank()


if __name__ == "__main__":
    from megatron.core.tensor_parallel import layers
    from megatron.core.tensor_parallel import random as mcore_random
    from megatron.core.transformer.moe import moe_utils

    functions = [layers.LinearWithFrozenWeight, layers.LinearWithGradAccumulationAndAsyncCommunication]
    everywhere = [torch.cuda, torch.Tensor, torch, mcore_random, moe_utils, *functions]
    originals = [dict(vars(owner)) for owner in everywhere]
    with nemo_sr.megatron.cpu_platform():
        main(*sys.argv[1:], list(stand_ins(originals, everywhere)))
