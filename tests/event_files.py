# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Event files as a run writes them."""

from pathlib import Path

from torch.utils.tensorboard import SummaryWriter


def write_events(folder, curves, *, time, purge_step=None) -> Path:
    """Write `curves` (name: {step: value}) by step, as a start at `time` does that resumes from before `purge_step`."""
    before = set(folder.glob("*")) if folder.is_dir() else set()
    with SummaryWriter(str(folder), purge_step=purge_step) as writer:
        for step in sorted({step for points in curves.values() for step in points}):
            for name, points in curves.items():
                if step in points:
                    writer.add_scalar(name, points[step], step)
    (file,) = set(folder.glob("*")) - before
    return file.rename(folder / f"events.out.tfevents.{time}.host.1.0")
