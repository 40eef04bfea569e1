# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The command line of scripts/compare_strategies.py."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from nemo_sr.experiments.strategies.sweep import read_sweep

_DESCRIPTION = """Compare the strategies of runs: tables and figures from their folders, finished or not.

  compare_strategies.py RESULTS                            report on all runs below RESULTS, into RESULTS/report
  compare_strategies.py RESULTS --table                    one line for each run: where it stands
  compare_strategies.py RESULTS --train strategies_10m     train that sweep on this machine's CPU first
  compare_strategies.py --point 3 strategies_350m          folder and words of a run of a sweep, for slurm/compare.slurm
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status: 0, or 2 for what cannot be done."""
    parser = argparse.ArgumentParser(
        prog="compare_strategies.py", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", nargs="?", type=Path, metavar="RESULTS", help="folder with the folders of runs")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--table", action="store_true", help="print where each run stands, and stop")
    what.add_argument("--train", metavar="NAME", help="train conf/experiment/NAME.yaml on the sample corpus first")
    what.add_argument("--point", nargs=2, metavar=("N", "NAME"), help="print the N-th run of a sweep, 0 for the first")
    parser.add_argument("--workers", type=int, help="processes that train (all cores)")
    parser.add_argument("--output", type=Path, help="folder of the report (RESULTS/report)")
    arguments = parser.parse_args(argv)
    from nemo_sr.training.config import ConfigError

    try:
        if arguments.point:
            return _print_point(*arguments.point)
        if arguments.results is None:
            parser.error("RESULTS must be given, the folder that holds those of the runs. See --help.")
        if arguments.train:
            _train(arguments.results, arguments.train, arguments.workers)
        if arguments.table:
            return _print_table(arguments.results)
        return _report(arguments.results, arguments.output or arguments.results / "report")
    except (ConfigError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 2


def _print_point(number: str, name: str) -> int:
    points = read_sweep(name)
    if 0 <= int(number) < len(points):
        point = points[int(number)]
        print("\n".join([point.name, *point.words]))  # noqa: T201
    return 0


def _train(results: Path, experiment: str, workers: int | None) -> None:
    from nemo_sr.data.parallel import usable_cores
    from nemo_sr.experiments.strategies.comparison import CORPORA, Trainings
    from nemo_sr.experiments.strategies.corpora import prepare

    trainings = Trainings(experiment, "sample", prepare("sample", CORPORA).absolute(), results.absolute())
    trainings.train(trainings.points, workers or usable_cores())


def run_folders(results: Path) -> list[Path]:
    """Return the folders of runs below a folder, in the order of their names."""
    found = {file.parent for file in results.rglob("events.out.tfevents.*")}
    # exp_manager moves the logs of earlier starts into run_0, run_1, ... of the run's folder.
    return sorted({folder.parent if folder.name.startswith("run_") else folder for folder in found})


def _print_table(results: Path) -> int:
    from nemo_sr.experiments.strategies.results import read_result

    rows = [("run", "step", "validation loss", "perplexity")]
    for folder in run_folders(results):
        one = read_result(folder)
        if one is not None:
            rows.append((str(folder.relative_to(results)), *one.standing))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())  # noqa: T201
    return 0


def _report(results: Path, output: Path) -> int:
    from dataclasses import replace

    from nemo_sr.experiments import Experiment
    from nemo_sr.experiments.frame.provenance import provenance_of
    from nemo_sr.experiments.frame.tables import markdown
    from nemo_sr.experiments.frame.writing import write_overview, write_report
    from nemo_sr.experiments.strategies.report import build_report, speed_table
    from nemo_sr.experiments.strategies.results import read_result

    read = [read_result(folder) for folder in run_folders(results)]
    found = [one for one in read if one is not None]
    introduction = (
        f"{len(found)} runs, read from their folders; {sum(one.loss is not None for one in found)} are finished."
    )
    report = build_report(found, introduction=introduction)
    report = replace(report, tables=[*report.tables, speed_table(found)])
    experiment = Experiment("strategies", "The paper's strategies side by side", "strategies", lambda lab: report)
    folder = output / experiment.name
    folder.mkdir(parents=True, exist_ok=True)
    provenance = provenance_of(experiment.name, quick=False, seeds={one.seed for one in found})
    write_report(
        experiment, report, replace(provenance, command="python scripts/compare_strategies.py RESULTS"), folder
    )
    write_overview(output, [experiment.name])
    print(f"{markdown(report.tables[0])}\n{output / 'index.html'}")  # noqa: T201
    return 0
