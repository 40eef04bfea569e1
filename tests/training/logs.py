# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Reads what a run's loggers wrote, each in the same form: {metric: {step: value, in FP32}}."""

import csv
import json
import struct
from collections import defaultdict
from pathlib import Path

import numpy as np

Points = dict[str, dict[int, float]]


def read_tensorboard(folder: Path) -> Points:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {
        name: {event.step: event.value for event in events.Scalars(name)} for name in sorted(events.Tags()["scalars"])
    }


def read_csv(folder: Path) -> Points:
    found = defaultdict(dict)
    with (folder / "csv" / "metrics.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            for name, value in row.items():
                if name != "step" and value:
                    found[name][int(row["step"])] = float(np.float32(value))
    return {name: found[name] for name in sorted(found)}


def read_wandb(folder: Path) -> Points:
    from wandb.proto import wandb_internal_pb2

    found = defaultdict(dict)
    for path in (folder / "wandb").glob("offline-run-*/*.wandb"):
        for record in _read_records(path.read_bytes()):
            message = wandb_internal_pb2.Record.FromString(record)
            items = message.history.item
            row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
            for name, value in row.items():
                if not name.startswith("_") and name != "trainer/global_step":
                    found[name][row["trainer/global_step"]] = float(np.float32(value))
    return {name: found[name] for name in sorted(found)}


def _read_records(data: bytes) -> list[bytes]:
    """Read LevelDB's log format, whose blocks of 32 KiB hold records or parts of them; the file has its own header."""
    records, begun, at = [], b"", 7
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        begun += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or its last part
            records.append(begun)
            begun = b""
    return records
