# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Bytes on disk, times and host memory of checkpoints: adamw_sr's beside those of Megatron's own Adam, as Markdown.

    python benchmarks/checkpoint_formats.py [--ranks 2] [--layers 6]

Data-parallel ranks over gloo on this machine's CPU. Bytes are those of all files, over the parameters. Host memory is
the highest resident memory of a rank during the save, beyond what it had before, over the parameters of the model.
"""

import argparse
import ctypes
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "distributed")]

FULLY, BY_BUCKETS, OURS = "fully_reshardable", "dp_reshardable", "ours"
ROWS = {
    "adamw_sr, distributed optimizer": ("adamw_sr", True, FULLY),
    "adamw_sr, distributed optimizer, dp_reshardable": ("adamw_sr", True, BY_BUCKETS),
    "adamw_sr, not distributed": ("adamw_sr", False, FULLY),
    "Adam, FP32 masters, Megatron's fully_reshardable": ("adam", True, FULLY),
    "Adam, FP32 masters, Megatron's dp_reshardable": ("adam", True, BY_BUCKETS),
    "Adam, FP32 masters, not distributed": ("adam", False, FULLY),
    "Adam, FP32 masters, as nemo_sr writes it": ("adam", True, OURS),
}


def build(name, distributed, layers):
    """Return a GPT in Megatron's DDP wrapper and its optimizer, after one step."""
    import torch
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        num_layers=layers,
        hidden_size=512,
        num_attention_heads=8,
        use_cpu_initialization=True,
        bf16=True,
        params_dtype=torch.bfloat16,
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
    )
    spec = get_gpt_layer_local_spec()
    gpt = GPTModel(config, spec, vocab_size=8192, max_sequence_length=256).bfloat16()
    ddp = DistributedDataParallelConfig(use_distributed_optimizer=distributed, grad_reduce_in_fp32=name == "adam")
    model = DistributedDataParallel(config, ddp, gpt)
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer=name,
            lr=1e-3,
            clip_grad=1.0,
            bf16=True,
            params_dtype=torch.bfloat16,
            use_distributed_optimizer=distributed,
        ),
        [model],
    )
    for param in model.parameters():
        param.main_grad.normal_()
    optimizer.step()
    return model, optimizer


def describe(model, optimizer, kind, *, is_loading):
    """Return the sharded state of model and optimizer."""
    from nemo_sr.megatron.stock import describe_stock_state

    state = model.module.sharded_state_dict()
    if kind == OURS:
        return {"model": state, "optimizer": describe_stock_state(optimizer, state, is_loading=is_loading)}
    metadata = {"distrib_optim_sharding_type": kind}
    return {"model": state, "optimizer": optimizer.sharded_state_dict(state, is_loading=is_loading, metadata=metadata)}


def load(model, optimizer, kind, directory):
    """Load model and optimizer."""
    from checkpoint_cases import stock_step_repaired
    from megatron.core import dist_checkpointing

    from nemo_sr.megatron.stock import load_stock_state

    state = dist_checkpointing.load(describe(model, optimizer, kind, is_loading=True), directory)
    model.module.load_state_dict(state["model"])
    if kind == OURS:
        load_stock_state(optimizer, state["optimizer"])
        return
    with stock_step_repaired(optimizer):
        optimizer.load_state_dict(state["optimizer"])


def resident(key):
    """Return VmRSS or VmHWM of this process in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def measure(row, layers, turns, directory):
    """Save and load several times; return what a row of the table needs."""
    import torch
    import torch.distributed as dist
    from megatron.core import dist_checkpointing

    name, distributed, kind = row
    model, optimizer = build(name, distributed, layers)
    saves, loads, extra = [], [], 0
    for _ in range(turns):
        if dist.get_rank() == 0:
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir()
        dist.barrier()
        ctypes.CDLL(None).malloc_trim(0)  # what was freed and kept would hide what the save takes
        before = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
        begin = time.perf_counter()
        dist_checkpointing.save(describe(model, optimizer, kind, is_loading=False), str(directory))
        dist.barrier()
        saves.append(time.perf_counter() - begin)
        extra = max(extra, resident("VmHWM") - before)
        begin = time.perf_counter()
        load(model, optimizer, kind, str(directory))
        dist.barrier()
        loads.append(time.perf_counter() - begin)
    peak = torch.tensor(extra)
    dist.all_reduce(peak, op=dist.ReduceOp.MAX)
    size = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    parameters = sum(param.numel() for param in model.parameters())
    return {
        "size": size / parameters,
        "save": min(saves),
        "load": min(loads),
        "memory": peak.item() / parameters,
        "parameters": parameters,
    }


def rank_main(output, directory, layers, turns):
    """Measure every row on this rank; rank 0 writes the results."""
    import torch.distributed as dist
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    import nemo_sr.megatron

    dist.init_process_group("gloo")
    nemo_sr.megatron.install()
    parallel_state.initialize_model_parallel()
    model_parallel_cuda_manual_seed(1)
    results = {name: measure(row, layers, turns, Path(directory) / "saved") for name, row in ROWS.items()}
    if dist.get_rank() == 0:
        Path(output).write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


def main():
    """Start the ranks and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, help="data-parallel ranks")
    parser.add_argument("--layers", type=int, default=6, help="layers, 3.2M parameters each")
    parser.add_argument("--turns", type=int, default=3, help="the best time of so many is taken")
    options = parser.parse_args()
    from gloo_ranks import run_ranks

    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        output = directory / "results.json"
        arguments = ("--rank", str(output), folder, str(options.layers), str(options.turns))
        run_ranks(Path(__file__), options.ranks, *arguments, directory=directory, timeout=1200)
        results = json.loads(output.read_text())
    parameters = next(iter(results.values()))["parameters"]
    print(f"{parameters / 1e6:.1f}M parameters, {options.ranks} data-parallel ranks\n")
    print("| optimizer and format | B/param on disk | save, s | load, s | host memory of a save, B/param a rank |")
    print("|---|---|---|---|---|")
    for name, row in results.items():
        print(f"| {name} | {row['size']:.2f} | {row['save']:.2f} | {row['load']:.2f} | {row['memory']:.1f} |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        import nemo_sr.megatron

        with nemo_sr.megatron.cpu_platform():
            rank_main(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    else:
        main()
