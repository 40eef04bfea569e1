# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""A data set that a small GPT learns within steps, and the command line that trains on it."""

import contextlib
import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import psutil
import torch

from nemo_sr.data.vocabulary import byte_symbols
from nemo_sr.training.launch import free_port

ROOT = Path(__file__).resolve().parents[2]
VOCAB_SIZE = 512
EOD = VOCAB_SIZE - 1


def write_toy_data(folder: Path, num_documents: int = 300) -> Path:
    """Write documents in which one of four tokens follows each token, and the tokenizer's files; return the prefix."""
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    generator = np.random.default_rng(0)
    followers = generator.integers(0, EOD, size=(EOD, 4))
    prefix = folder / "toy"
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
    for _ in range(num_documents):
        tokens = [int(generator.integers(0, EOD))]
        for choice in generator.integers(0, 4, size=int(generator.integers(50, 600))):
            tokens.append(int(followers[tokens[-1]][choice]))
        builder.add_document(torch.tensor([*tokens, EOD]), [len(tokens) + 1])
    builder.finalize(f"{prefix}.idx")
    symbols = byte_symbols()
    merges = [(symbols[i], symbols[i + 1]) for i in range(EOD - 256)]
    tokens = [*symbols, *(left + right for left, right in merges), "<|endoftext|>"]
    (folder / "gpt2-vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in merges), ""]
    (folder / "gpt2-merges.txt").write_text("\n".join(lines))
    return prefix


def overrides(prefix: Path, run: Path, *, max_steps: int) -> list[str]:
    """Return the overrides of gpt_tiny_cpu for a short run of a still smaller model."""
    return [
        f"data.data_prefix={prefix}",
        f"exp_manager.explicit_log_dir={run}",
        f"trainer.max_steps={max_steps}",
        f"trainer.val_check_interval={max_steps // 2}",
        "trainer.limit_val_batches=2",
        "trainer.log_every_n_steps=5",
        "optim.sched.warmup_steps=3",
        "model.num_layers=2",
        "model.hidden_size=64",
        "model.encoder_seq_length=64",
        "model.micro_batch_size=4",
    ]


def environment() -> dict[str, str]:
    """Return an environment in which child processes find this checkout and use one thread each."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}


def pretrain(*words: str, torchrun: int = 0, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """Run scripts/pretrain_gpt.py as a person would, or under torchrun with that many processes."""
    return run_python(ROOT / "scripts/pretrain_gpt.py", *words, torchrun=torchrun, timeout=timeout)


def run_python(script: Path, *words: str, torchrun: int = 0, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """Run a script, under torchrun where `torchrun` is a number of processes."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--local_addr=127.0.0.1", f"--nproc_per_node={torchrun}"]
    command = [sys.executable, *(launcher if torchrun else []), str(script), *words]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=timeout)


def run_jobs(folder: Path, jobs: dict[str, list[str]], *, num_ranks: int) -> dict[str, dict]:
    """Train with several command lines in one start of `num_ranks` processes; return what worker.py recorded of each.

    Each result has its command line under "words".
    """
    with_ports = {name: (free_port(), words) for name, words in jobs.items()}
    (folder / "jobs.json").write_text(json.dumps(with_ports))
    worker = [str(Path(__file__).with_name("worker.py")), str(folder / "jobs.json"), str(folder / "results.json")]
    done = run_python(*worker, torchrun=num_ranks, timeout=580)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((folder / "results.json").read_text())
    return {name: {**result, "words": jobs[name]} for name, result in results.items()}


def start_pretrain(*words: str) -> subprocess.Popen[str]:
    """Start scripts/pretrain_gpt.py without waiting for it."""
    command = [sys.executable, str(ROOT / "scripts/pretrain_gpt.py"), *words]
    return subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def find_ranks(process: subprocess.Popen) -> dict[int, psutil.Process]:
    """Return the processes that a started run has for its ranks; by their environment, which Linux shows."""
    ranks = {}
    for child in psutil.Process(process.pid).children():
        with contextlib.suppress(psutil.Error, KeyError):  # one that has ended, or is no rank
            ranks[int(child.environ()["RANK"])] = child
    return ranks


def read_tensors(checkpoint: Path) -> dict[str, torch.Tensor]:
    """Return every tensor of a checkpoint, whole."""
    import torch.distributed.checkpoint as dcp

    reader = dcp.FileSystemReader(checkpoint)
    entries = reader.read_metadata().state_dict_metadata
    tensors = {name: torch.empty(e.size, dtype=e.properties.dtype) for name, e in entries.items() if hasattr(e, "size")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(tensors, storage_reader=reader, no_dist=True)
    return tensors


def wait_for(predicate, timeout: float = 240) -> None:
    """Wait until `predicate` holds."""
    deadline = time.monotonic() + timeout
    while not predicate():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.2)
