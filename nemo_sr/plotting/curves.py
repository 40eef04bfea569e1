# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The scalar curves of a run, from the event files of all its starts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_NOT_CURVES = ("hp_metric", "epoch")  # Lightning's, the same in every run
_NAME = re.compile(r"tfevents\.(\d+)\..*\.(\d+)$")  # seconds since 1970; number among those of its process


class Curve(NamedTuple):
    """Values over steps, by step."""

    steps: NDArray[np.int64]
    """Optimizer steps, rising. Shape (n,), int64."""

    values: NDArray[np.float64]
    """What was logged at each. Shape (n,), float64; may hold NaN and infinities."""


class NoCurvesError(ValueError):
    """A folder has no event file; the message says what to do."""


def read_curves(run_folder: Path | str) -> dict[str, Curve]:
    """Return the scalar curves of a run, all of its starts together.

    A start replaces what earlier ones have logged from its first step on, as TensorBoard shows it. A file whose end is
    missing, since the run is still writing it or was killed, counts as far as it goes.

    Args:
        run_folder: The run's folder (``exp_manager.explicit_log_dir``), with the event files of its starts.

    Returns:
        Curves by the names of the log, ``reduced_train_loss`` say; empty if nothing has been logged yet.

    Raises:
        NoCurvesError: the folder has no event file.
    """
    folder = Path(run_folder)
    files = find_event_files(folder)
    if not files:
        raise NoCurvesError(
            f"A run's folder must hold TensorBoard event files (events.out.tfevents.*); {folder} "
            f"{'holds none' if folder.is_dir() else 'is no folder'}. Give the folder that the run was started with as "
            "exp_manager.explicit_log_dir (runs/NAME), with exp_manager.create_tensorboard_logger=true."
        )
    points: dict[str, dict[int, float]] = {}
    for file in files:
        start: int | None = None
        for step, name, value in _read_events(file):
            if start is None:
                start = step
                for earlier in points.values():
                    for done in [done for done in earlier if done >= start]:
                        del earlier[done]
            if name:
                points.setdefault(name, {})[step] = value
    return {name: _as_curve(curve) for name, curve in sorted(points.items()) if curve}


def find_event_files(folder: Path) -> list[Path]:
    """Return the event files of a run's starts, the first one first."""
    # exp_manager moves those of earlier starts into run_0, run_1, ... when it is told to resume by itself.
    files = [*folder.glob("events.out.tfevents.*"), *folder.glob("run_[0-9]*/events.out.tfevents.*")]
    return sorted(files, key=_written)


def smooth(values: NDArray[np.float64], weight: float) -> NDArray[np.float64]:
    """Return the exponential average of `values`, as TensorBoard's slider does it: without a bias at the start.

    Args:
        values: Shape (n,). Values that are not finite are left out of the average and stay as they are.
        weight: Share of the average that a step keeps, in [0, 1).

    Raises:
        ValueError: weight is out of range.
    """
    if not 0 <= weight < 1:
        raise ValueError(f"The weight of smoothing must be at least 0 and less than 1; it is {weight}. Take 0.6, say.")
    smoothed: NDArray[np.float64] = np.array(values, dtype=np.float64)
    average, total = 0.0, 0.0
    for index in np.flatnonzero(np.isfinite(smoothed)):
        average = average * weight + float(values[index]) * (1 - weight)
        total = total * weight + (1 - weight)
        smoothed[index] = average / total
    return smoothed


def _written(file: Path) -> tuple[int, int, str]:
    match = _NAME.search(file.name)
    return (int(match[1]), int(match[2]), "") if match else (0, 0, file.name)


def _read_events(file: Path) -> Iterator[tuple[int, str, float]]:
    """Yield (step, name, value) of a file's scalars, and (step, "", 0) where it says from which step on it counts."""
    loader, session_start = _event_loader(file)
    for event in loader.Load():
        if event.HasField("session_log"):
            if event.session_log.status == session_start:
                yield event.step, "", 0.0
        elif event.HasField("summary"):
            for value in event.summary.value:
                if value.HasField("simple_value") and value.tag not in _NOT_CURVES:
                    yield event.step, value.tag, value.simple_value


def _event_loader(file: Path) -> tuple[Any, Any]:
    # Imported here: it takes a second.
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
    from tensorboard.compat.proto.event_pb2 import SessionLog

    return LegacyEventFileLoader(str(file)), SessionLog.START


def _as_curve(points: dict[int, float]) -> Curve:
    steps = sorted(points)
    return Curve(np.array(steps, dtype=np.int64), np.array([points[step] for step in steps], dtype=np.float64))
