# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""A run's metrics in one CSV file, on which all its starts go on."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger

from nemo_sr.training.metrics import METRICS, SETS

# In a folder: exp_manager moves away the files that it finds beside its own.
CSV_FILE = Path("csv") / "metrics.csv"


class CSVLogger(Logger):  # type: ignore[misc]
    """Writes a row for each report, with a column for every metric of :mod:`nemo_sr.training.metrics`.

    A row is on disk once it has been logged. Several rows may have one step, each with other metrics. Lightning's own
    logger begins its file anew at each start. One process alone may have one.

    Args:
        folder: The run's folder.
        step: The step that the run goes on from; what the file has of later steps is taken out.
        sets: Names of the sets that the run validates on beside its own.
    """

    name = "csv"
    version = ""

    def __init__(self, folder: Path, step: int, sets: Iterable[str] = ()) -> None:
        super().__init__()
        self._columns = ["step", *METRICS, *(f"{metric}/{name}" for name in sets for metric in SETS)]
        self._path = folder / CSV_FILE
        rows = _read_rows(self._path, step)
        part = self._path.with_suffix(".part")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self._columns, extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        os.replace(part, self._path)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Append a row."""
        with self._path.open("a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self._columns, lineterminator="\n").writerow({"step": step, **metrics})

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Do nothing: a table of metrics has no place for them."""


def _read_rows(path: Path, last_step: int) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        # A row that was being written when the run was killed has too few columns.
        rows = [row for row in csv.DictReader(file) if None not in row.values()]
    return [row for row in rows if int(row["step"]) <= last_step]
