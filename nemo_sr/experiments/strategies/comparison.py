# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The paper's figures 4 to 6 and its result tables at small scale: real trainings through pretrain_gpt.py."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from nemo_sr.experiments import Experiment, Lab, Report
from nemo_sr.experiments.strategies.analysis import compare
from nemo_sr.experiments.strategies.corpora import corpora, prepare
from nemo_sr.experiments.strategies.full_size import plan_full_size
from nemo_sr.experiments.strategies.report import build_report, speed_table
from nemo_sr.experiments.strategies.results import Result, read_result
from nemo_sr.experiments.strategies.sweep import STRATEGIES, Point, read_sweep
from nemo_sr.experiments.strategies.training import MINUTES, Job, train_missing

CORPORA = Path("data") / "lab"
PRIMARY = "gpt_tiny_cpu"
FULL_SIZE = ("gpt_neo_6.7b", 64)
"""Configuration and GPUs of the plan."""

REPEATED: dict[str, tuple[float, ...] | None] = {"sample": (3e-4,), "wikipedia": None}
"""Learning rates, beside each strategy's best, that run with every seed, by corpus; None: the first seed alone runs."""

RATES = {"sample": None, "wikipedia": (1e-3, 3e-3)}
"""Learning rates of the sweep that run with the first seed; None: all."""

MINUTES_OF_A_START = 18.0
"""After these no training begins, so that a start takes less than 20 minutes; all take some 25 on two cores."""

QUICK = (
    *("trainer.max_steps=6", "trainer.val_check_interval=3", "trainer.limit_val_batches=1"),
    *("optim.sched.warmup_steps=2", "model.num_layers=1", "model.hidden_size=32", "model.encoder_seq_length=32"),
)


class Trainings:
    """The runs of one sweep on one corpus.

    Args:
        experiment: Name of the sweep, see ``sweep.read_sweep``.
        corpus: Name of the text.
        prefix: Its tokens.
        folder: Of the runs.
        words: Further words of the command line.
    """

    def __init__(self, experiment: str, corpus: str, prefix: Path, folder: Path, words: Sequence[str] = ()) -> None:
        self.points = read_sweep(experiment)
        self.asked = 0
        """Runs that were asked for so far."""
        self.corpus = corpus
        self._prefix = prefix
        self._folder = folder
        self._words = (f"--config-name={PRIMARY}", f"+experiment={experiment}", *words)

    def train(self, points: Sequence[Point], workers: int, minutes: float = math.inf) -> list[Result]:
        """Train what is missing of some runs, and read them; see :func:`train_missing`."""
        folders = [self._folder / "runs" / self.corpus / point.name for point in points]
        jobs = [
            Job(folder, (*self._words, *point.words), self._prefix)
            for folder, point in zip(folders, points, strict=True)
        ]
        finished = train_missing(jobs, workers=workers, scratch=self._folder / "workers", minutes=minutes)
        self.asked += len(points)
        read = [read_result(folder, self.corpus) for folder in finished]
        return [one for one in read if one is not None]

    def first(self, rates: Sequence[float] | None) -> list[Point]:
        """Return the runs of the first seed, at some rates or all."""
        seed = self.points[0].settings["model.seed"]
        return [
            point
            for point in self.points
            if point.settings["model.seed"] == seed and (rates is None or float(point.settings["optim.lr"]) in rates)
        ]

    def further(self, results: Sequence[Result], rates: Sequence[float]) -> list[Point]:
        """Return the runs of the other seeds: at each strategy's best rate of the first seed, and at some rates."""
        best = {name: one.best_rate(name) for one in compare(results) for name in one.strategies}
        first = self.first(None)
        return [
            point
            for point in self.points
            if point not in first
            and (lr := float(point.settings["optim.lr"]), name := point.settings["optim"])
            and (lr in rates or lr == best.get(name))
        ]


def run(lab: Lab) -> Report:
    """Compute the report."""
    from nemo_sr.data.parallel import usable_cores

    workers = usable_cores()
    results: list[Result] = []
    asked = 0
    lab.folder.mkdir(parents=True, exist_ok=True)
    for corpus in lab.choose(quick=["sample"], full=corpora()):
        prefix = prepare(corpus, CORPORA, size_mb=lab.choose(quick=0.5, full=None)).absolute()
        words = lab.choose(quick=QUICK, full=())
        folder = lab.folder.absolute() / lab.choose(quick="quick", full="full")
        trainings = Trainings("strategies_tiny", corpus, prefix, folder, words)
        if lab.quick:
            results += trainings.train(trainings.first((1e-3,)), workers)
        else:
            results += (first := trainings.train(trainings.first(RATES[corpus]), workers, MINUTES_OF_A_START))
            if (repeated := REPEATED[corpus]) is not None:
                results += trainings.train(trainings.further(first, repeated), workers, MINUTES_OF_A_START)
        asked += trainings.asked
    lab.seeds.update(one.seed for one in results)
    config, gpus = FULL_SIZE
    planned = lab.part(plan_full_size, config=config, gpus=gpus)
    report = build_report(results, introduction=_introduction(results, asked, gpus), planned=planned)
    return Report(report.summary, report.checks, [*report.tables, speed_table(results)], report.figures)


def _introduction(results: Sequence[Result], asked: int, gpus: int) -> str:
    one = results[0]
    missing = ""
    if len(results) < asked:
        missing = f" {asked - len(results)} of {asked} were not trained in the time given (`{MINUTES}`): see n."
        missing += " The same command trains them."
    commits = ", ".join(sorted({result.commit for result in results}))
    return f"""
{len(results)} trainings of a GPT of {one.num_parameters:,} parameters through `scripts/pretrain_gpt.py`'s own code,
real Megatron-core and all, one process each: {one.max_steps} steps of {one.tokens_per_step:,} tokens, {len(STRATEGIES)}
strategies that differ in `optim=...` alone (`conf/experiment/strategies_tiny.yaml`). They were trained at commit
{commits}.{missing} **Nothing here ran on a GPU**: the paper's scales, 350M to 6.7B parameters, have not been run; their
configurations are in `conf/experiment/`. Bytes at 6.7B are planned (`scripts/plan.py`, {gpus} GPUs, tensor parallelism
4), not measured."""


EXPERIMENT = Experiment(
    name="strategies",
    title="The paper's strategies side by side",
    page="strategies",
    run=run,
    sources=("nemo_sr/planning", "conf"),
)
