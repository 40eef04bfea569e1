# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What the Megatron benchmarks share: ranks over gloo, a GPT of our own configuration, and text of this Python."""

import contextlib
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from omegaconf import OmegaConf

import nemo_sr.megatron
from nemo_sr.training.config import compose_config
from nemo_sr.training.launch import free_port

VOCABULARY = 256


def run_on_ranks(num_ranks, *words):
    """Run this script on `num_ranks` processes with `words`, and end if one fails."""
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(num_ranks)}
    env.setdefault("OMP_NUM_THREADS", "1")
    command = [sys.executable, "-W", "ignore", sys.argv[0], *words]
    ranks = [
        subprocess.Popen(command, env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(num_ranks)
    ]
    statuses = [rank.wait() for rank in ranks]
    if any(statuses):
        sys.exit("a rank has failed")


def is_rank():
    """Tell a process that run_on_ranks started from the one that a person did."""
    return "RANK" in os.environ


@contextlib.contextmanager
def megatron_on_cpu():
    """Enter the CPU platform with the process group of run_on_ranks."""
    with nemo_sr.megatron.cpu_platform():
        dist.init_process_group("gloo")
        nemo_sr.megatron.install()
        yield
        dist.barrier()
        dist.destroy_process_group()


def make_groups(tp=1, **options):
    """Make Megatron's process groups anew."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(tp, **options)
    model_parallel_cuda_manual_seed(1)


def build_model(*words, tp=1, grad_in_fp32=False, distributed=True):
    """Build the GPT of gpt_tiny_cpu with the overrides `words`, in Megatron's DDP."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads

    from nemo_sr.models.gpt import build_gpt, transformer_config

    model = compose_config([*words, f"model.tensor_model_parallel_size={tp}"]).model
    config = transformer_config(model, on_cpu=True, params_dtype=torch.bfloat16)
    config.finalize_model_grads_func = finalize_model_grads
    gpt = build_gpt(config, model, vocab_size=VOCABULARY, on_cpu=True)
    ddp_config = DistributedDataParallelConfig(use_distributed_optimizer=distributed, grad_reduce_in_fp32=grad_in_fp32)
    return DistributedDataParallel(config, ddp_config, gpt)


def build_optimizer(model, name="adamw_sr", **options):
    """Call Megatron's own factory."""
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    config = OptimizerConfig(
        optimizer=name,
        lr=1e-3,
        adam_beta2=0.95,
        weight_decay=0.1,
        bf16=True,
        params_dtype=torch.bfloat16,
        use_distributed_optimizer=model.ddp_config.use_distributed_optimizer,
    )
    for key, value in options.items():
        setattr(config, key, value)
    return get_megatron_optimizer(config, [model])


def text(length):
    """Return samples of `length` + 1 bytes of the Python sources of this Python, in random order: shape (n, ...)."""
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    joined = np.frombuffer(b"".join(path.read_bytes() for path in sources), dtype=np.uint8)
    samples = torch.from_numpy(joined[: len(joined) // (length + 1) * (length + 1)].astype(np.int64)).view(
        -1, length + 1
    )
    return samples[torch.randperm(len(samples), generator=torch.Generator().manual_seed(0))]


def mean_loss(model, samples):
    """Return the mean loss of one micro batch."""
    inputs, labels = samples[:, :-1].contiguous(), samples[:, 1:].contiguous()
    positions = torch.arange(inputs.shape[1]).expand_as(inputs)
    return model(inputs, positions, None, labels=labels).float().mean()


def configuration():
    """Return the sizes of the model as one line."""
    model = OmegaConf.to_container(compose_config([]).model)
    return "{num_layers} layers, {hidden_size} wide, {encoder_seq_length} tokens a sample".format(**model)
