# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The command line of the experiments."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from nemo_sr.experiments.catalogue import experiments
from nemo_sr.experiments.frame.documents import require_pages, write_documents
from nemo_sr.experiments.frame.experiment import Experiment, Report
from nemo_sr.experiments.frame.lab import Lab
from nemo_sr.experiments.frame.provenance import Provenance, provenance_of
from nemo_sr.experiments.frame.sources import code_version
from nemo_sr.experiments.frame.writing import write_overview, write_report


def main(arguments: Sequence[str] | None = None) -> int:
    """Run experiments and write their reports.

    Args:
        arguments: Of the command line; None takes those of the process.

    Returns:
        0, or 1 if a required check failed.
    """
    known = experiments()
    parser = argparse.ArgumentParser(
        prog="python -m nemo_sr.experiments",
        description="Compute the tables and figures of the experiments from seeds, and write a page on each. "
        "Finished parts are kept: the same command goes on where an earlier one ended.",
        epilog="Experiments: " + "; ".join(f"{one.name} ({one.title}, page {one.page})" for one in known.values()),
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="experiments, or pages of them; all if none is given")
    parser.add_argument("--quick", action="store_true", help="the quick form: all in under 3 minutes")
    parser.add_argument("--output", type=Path, default=Path("reports"), help="folder of the reports (%(default)s)")
    parser.add_argument(
        "--docs",
        type=Path,
        metavar="FOLDER",
        help="write the results into the documentation in FOLDER too; name whole pages",
    )
    options = parser.parse_args(arguments)
    try:
        chosen = choose(options.names, known)
        if options.docs is not None:
            require_pages(chosen, list(known.values()), options.docs)
    except ValueError as error:
        parser.error(str(error))
    for experiment in chosen:  # before anything runs: sources may be edited while it does
        code_version(experiment.run.__module__, tuple(experiment.sources))
    failed, results = 0, []
    for experiment in chosen:
        report, provenance = run(experiment, options.output, quick=options.quick)
        for check in report.failed:
            _say(f"  FAIL: {check.statement}: expected {check.expected}, measured {check.measured}")
        failed += len(report.failed)
        results.append((experiment, report, provenance))
    write_overview(options.output, list(known))
    if options.docs is not None:
        for page in write_documents(results, options.output, options.docs):
            _say(f"{page}: written")
    _say(f"{options.output / 'index.html'}: {len(chosen)} experiments, {failed} required checks failed")
    return 1 if failed else 0


def choose(names: Sequence[str], known: Mapping[str, Experiment]) -> list[Experiment]:
    """Return the experiments that names, or names of pages, stand for; all for none.

    Raises:
        ValueError: there is none of that name.
    """
    pages = {experiment.page for experiment in known.values()}
    unknown = [name for name in names if name not in known and name not in pages]
    if unknown:
        raise ValueError(
            f"NAME must be one of {', '.join([*known, *sorted(pages)])}; got {', '.join(unknown)}. Choose from these."
        )
    return [one for one in known.values() if not names or one.name in names or one.page in names]


def run(experiment: Experiment, output: Path, *, quick: bool) -> tuple[Report, Provenance]:
    """Run an experiment, write its report into its folder below ``output``, and return it with its provenance."""
    _say(f"{experiment.name}: {experiment.title}")
    start = time.perf_counter()
    folder = output / experiment.name
    folder.mkdir(parents=True, exist_ok=True)
    lab = Lab(folder, quick=quick, sources=tuple(experiment.sources), say=_say)
    report = experiment.run(lab)
    provenance = provenance_of(experiment.name, quick=quick, seeds=lab.seeds)
    write_report(experiment, report, provenance, folder)
    lab.write_times(folder / "timings.csv")
    passed = sum(check.passed for check in report.checks)
    _say(f"  {passed} of {len(report.checks)} checks hold; {time.perf_counter() - start:.1f} s")
    return report, provenance


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
