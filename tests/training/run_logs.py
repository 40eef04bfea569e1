# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What whole runs of test_runs.py leave in their logs."""

import gzip
import json
from pathlib import Path

from logs import read_csv, read_tensorboard, read_wandb

from nemo_sr.training.metrics import METRICS

AT_INTERVALS = (
    "reduced_train_loss",
    "lr",
    "grad_norm",
    "consumed_samples",
    "skipped_steps",
    "loss_spikes",
    "train_step_timing in s",
    "tokens_per_sec",
    "tflops_per_sec_per_gpu",
    "peak_memory_mib",
)
IN_TELEMETRY = [name for name in METRICS if name.startswith("sr/") and not name.endswith(("/output", "/other"))]


def check_logs(whole: Path, stopped: Path) -> None:
    """Check that both runs of 100 steps, of which one was stopped, logged the same, everywhere."""
    board, table = read_tensorboard(whole), read_csv(whole)
    assert board == table == read_wandb(whole)
    assert set(board) - set(METRICS) == {"val_loss/same", "val_ppl/same"}
    for folder in (whole, stopped):
        logged = read_tensorboard(folder)
        assert logged == read_csv(folder)
        assert {name: list(points) for name, points in logged.items()} == {
            **{name: list(range(5, 101, 5)) for name in AT_INTERVALS},
            **{name: [50, 100] for name in ("val_loss", "val_ppl", "val_loss/same", "val_ppl/same")},
            **{name: list(range(10, 101, 10)) for name in IN_TELEMETRY},
        }
    same = ["reduced_train_loss", "lr", "grad_norm", "val_loss", "val_loss/same", "loss_spikes"]
    same += ["consumed_samples", *IN_TELEMETRY]
    same.remove("sr/exp_avg_sq_shortfall")  # it begins anew
    for name in same:
        assert read_csv(stopped)[name] == table[name], name


def check_trace(folder: Path) -> None:
    """Check the trace of steps 3 and 4 on rank 1."""
    (path,) = (folder / "profile").iterdir()
    assert path.name == "steps_3-4_rank_1.json.gz"
    names = [event["name"] for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]]
    assert [names.count(name) for name in ("forward and backward", "optimizer")] == [2, 2]
