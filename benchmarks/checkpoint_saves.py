# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What a save costs: at once and in the background, its checksums, and reading the files again before a resume.

Usage: python benchmarks/checkpoint_saves.py [--millions 64] [--turns 3]

Two gloo ranks write one pipeline stage's worth each of BF16 tensors (8 bytes a parameter, as adamw_sr does).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

KINDS = ("sync", "async")


def parse_args():
    """Return the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=int, default=64, help="parameters")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to write (default: a temporary folder)")
    return parser.parse_args()


def start_ranks(args, folder):
    """Run this script on two ranks; return the exit status."""
    from nemo_sr.training.launch import free_port

    env = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    env |= {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "BENCHMARK_FOLDER": str(folder)}
    ranks = [subprocess.Popen([sys.executable, *sys.argv], env={**env, "RANK": str(rank)}) for rank in range(2)]
    return max(rank.wait() for rank in ranks)


def run_rank(args):
    """Save and read in turns; rank 0 writes the times down."""
    import torch
    import torch.distributed as dist

    import nemo_sr.megatron
    from nemo_sr.training.manifest import describe_file, find_altered, read_manifest, share_of
    from nemo_sr.training.saving import About, CheckpointWriter

    dist.init_process_group("gloo")
    rank, folder = dist.get_rank(), Path(os.environ["BENCHMARK_FOLDER"])
    tensors = [torch.randn(args.millions * 500_000 // 8).bfloat16() for _ in range(4 * 8)]
    times = {name: [] for name in ("sync", "async: training waits", "async: until published", "checksums", "verify")}

    with nemo_sr.megatron.cpu_platform():
        for turn in range(args.turns):
            for kind in KINDS:
                writer = CheckpointWriter(folder / kind, asynchronous=kind == "async", newest=1, best=0)
                dist.barrier()
                began = time.perf_counter()
                writer.save(_state(tensors, rank), About(turn, turn, None, {"ranks": 2}, {}))
                if kind == "async":
                    while writer.newest is None:  # as training does after each step
                        time.sleep(0.05)
                        writer.finish(wait=False)
                    times["async: training waits"].append(writer.stalled_seconds)
                name = "sync" if kind == "sync" else "async: until published"
                times[name].append(time.perf_counter() - began)
            checkpoint = folder / "sync" / f"step_{turn:08d}"
            manifest = read_manifest(checkpoint)
            shards = [name for name in manifest.files if name.startswith(f"__{rank}_")]
            began = time.perf_counter()
            for name in shards:
                describe_file(checkpoint / name)
            times["checksums"].append(time.perf_counter() - began)
            dist.barrier()
            began = time.perf_counter()
            assert not find_altered(checkpoint, manifest, share_of(manifest, rank, 2))
            dist.barrier()
            times["verify"].append(time.perf_counter() - began)
    if rank == 0:
        num_bytes = sum(entry.bytes for entry in manifest.files.values())
        (folder / "times.json").write_text(json.dumps([times, num_bytes]))
    dist.barrier()
    dist.destroy_process_group()


def _state(tensors, rank):
    from megatron.core.dist_checkpointing.mapping import ShardedTensor

    return {
        f"tensor{number}": ShardedTensor.from_rank_offsets(f"tensor{number}", tensor, (0, rank, 2))
        for number, tensor in enumerate(tensors)
    }


def main():
    """Start the ranks and print the table."""
    args = parse_args()
    if "RANK" in os.environ:
        run_rank(args)
        return 0
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        status = start_ranks(args, folder)
        if status:
            return status
        times, num_bytes = json.loads((Path(folder) / "times.json").read_text())
    print(f"{args.millions}M parameters, {num_bytes / 1e6:.0f} MB, two ranks, medians of {args.turns} turns:\n")
    print("| what | seconds | MB/s |")
    print("|---|---|---|")
    for name, seconds in times.items():
        median = statistics.median(seconds)
        share = num_bytes / 2 if name == "checksums" else num_bytes
        rate = "" if name == "async: training waits" else f"{share / median / 1e6:.0f}"
        print(f"| {name} | {median:.2f} | {rate} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
