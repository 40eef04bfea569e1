# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What the stand-ins for torch.cuda cost in step time, as a Markdown table.

    OMP_NUM_THREADS=1 python benchmarks/cpu_platform.py [--turns N]

Megatron-core runs on a CPU with the stand-ins only, so their cost is measured on what runs with and without them: a
step of a small transformer in plain torch, and single calls. Each turn takes both, in alternating order; a ratio is of
one turn, and the table has the median and the quartiles. The share of a Megatron-core step is computed: its calls into
torch times what the stand-ins add to one call, over its time.
"""

import argparse
import contextlib
import statistics
import sys
import time
import warnings

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

import nemo_sr.megatron

VOCABULARY, LENGTH, SAMPLES = 1024, 128, 4
CALLS = 20_000


def plain_step():
    """Return a function that runs one step of a small transformer in plain torch."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True, norm_first=True)
    model = torch.nn.Sequential(
        torch.nn.Embedding(VOCABULARY, 256),
        torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False),
        torch.nn.Linear(256, VOCABULARY),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    tokens = torch.randint(0, VOCABULARY, (SAMPLES, LENGTH + 1))

    def step():
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()

    return step


def single_calls():
    """Return a function that makes many of the cheapest calls."""
    x = torch.zeros(1)

    def calls():
        for _ in range(CALLS):
            torch.neg(x)

    return calls


def seconds(function):
    """Return how long one call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def paired(function, turns):
    """Return the seconds without and with the stand-ins, turn by turn, after one call that is not counted."""
    contexts = {"without": contextlib.nullcontext, "with": nemo_sr.megatron.cpu_platform}
    taken = {name: [] for name in contexts}
    function()
    for turn in range(turns):
        for name in sorted(contexts, reverse=turn % 2 == 1):
            with contexts[name]():
                taken[name].append(seconds(function))
    return taken["without"], taken["with"]


def megatron_step():
    """Return a function that runs one step of a GPT of the same size in Megatron-core; to be called inside."""
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from omegaconf import OmegaConf

    from nemo_sr.models.gpt import build_gpt, transformer_config
    from nemo_sr.training.schema import ModelConfig

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    model_parallel_cuda_manual_seed(1)
    model = OmegaConf.structured(
        ModelConfig(
            num_layers=4,
            hidden_size=256,
            num_attention_heads=4,
            encoder_seq_length=LENGTH,
            max_position_embeddings=LENGTH,
            micro_batch_size=SAMPLES,
            global_batch_size=SAMPLES,
        )
    )
    config = transformer_config(model, on_cpu=True, params_dtype=torch.bfloat16)
    config.finalize_model_grads_func = finalize_model_grads
    gpt = build_gpt(config, model, vocab_size=VOCABULARY, on_cpu=True)
    chunk = DistributedDataParallel(config, DistributedDataParallelConfig(use_distributed_optimizer=True), gpt)
    nemo_sr.megatron.install()
    options = {"lr": 1e-3, "bf16": True, "params_dtype": torch.bfloat16, "use_distributed_optimizer": True}
    optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="adamw_sr", **options), [chunk])
    tokens = torch.randint(0, VOCABULARY, (SAMPLES, LENGTH + 1))
    inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    positions = torch.arange(LENGTH).expand_as(inputs)

    def forward_step(_, gpt):
        return gpt(inputs, positions, None, labels=labels), lambda losses: (losses.mean(), {})

    def step():
        chunk.zero_grad_buffer()
        optimizer.zero_grad()
        get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=None,
            model=[chunk],
            num_microbatches=1,
            seq_length=LENGTH,
            micro_batch_size=SAMPLES,
            forward_only=False,
        )
        optimizer.step()

    return step


class Counter(TorchFunctionMode):
    """Counts the calls that a torch function mode sees."""

    calls = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Count one call."""
        self.calls += 1
        return func(*args, **(kwargs or {}))


def main(turns):
    """Print the table."""
    rows = []
    for name, function in (("step of a transformer in plain torch", plain_step()), ("smallest call", single_calls())):
        without, with_ = paired(function, turns)
        ratios = statistics.quantiles([b / a for a, b in zip(without, with_, strict=True)], n=4)
        rows.append((name, statistics.median(without), statistics.median(with_), ratios))
    added = statistics.median(b - a for a, b in zip(without, with_, strict=True)) / CALLS
    with nemo_sr.megatron.cpu_platform():
        step = megatron_step()
        step()
        taken = statistics.median(seconds(step) for _ in range(turns))
        with Counter() as counter:
            step()
    dist.destroy_process_group()
    python = sys.version.split()[0]
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread(s), {turns} turns, Python {python}")
    print()
    print("| what | without | with | ratio: median (quartiles) |")
    print("|---|---|---|---|")
    for name, without, with_, (low, middle, high) in rows:
        unit, scale = ("us", 1e6 / CALLS) if "call" in name else ("ms", 1e3)
        numbers = f"{without * scale:.2f} {unit} | {with_ * scale:.2f} {unit}"
        print(f"| {name} | {numbers} | {middle:.3f} ({low:.3f} to {high:.3f}) |")
    share = counter.calls * added / taken
    print(
        f"| step of a GPT in Megatron-core | (does not run) | {taken * 1e3:.2f} ms | "
        f"{1 / (1 - share):.3f}, from {counter.calls} calls at {added * 1e6:.2f} us |"
    )


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=21, help="turns of each measurement (%(default)s)")
    main(parser.parse_args().turns)
