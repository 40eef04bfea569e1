# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The paper at the scale of a laptop: experiments that compute tables and figures from seeds alone.

``python -m nemo_sr.experiments [NAME...] [--quick] [--output reports]`` runs them and writes ``reports/``.

An experiment is a module with one constant, whose name stands in :mod:`nemo_sr.experiments.catalogue`::

    from nemo_sr.experiments import Check, Experiment, Figure, Lab, Report, Table

    def run(lab: Lab) -> Report:
        runs = [lab.part(one_run, seed=seed, steps=lab.choose(quick=10, full=1000)) for seed in range(3)]
        ...
        return Report(summary=f"...{number}...", checks=[...], tables=[...], figures=[...])

    EXPERIMENT = Experiment(name="toy", title="...", page="theory", run=run)

What takes time is done in *parts*: ``lab.part(function, **settings)`` returns ``function(**settings)``, or what it
returned before. A part is a function of the top level of a module; its settings and its result are what JSON holds
(floats come back to the bit). It is computed again when a setting, the torch version, the processor, or a source file
of nemo_sr changes that its module imports, directly or not (the frame excepted). A part that starts a subprocess
names what that runs in ``Experiment.sources`` (files or folders beside the package, "nemo_sr/training" or "conf"
say). Settings called ``seed`` or ``seeds`` are written into the provenance. Parts run on one thread of torch, so that
sums do not depend on the number of cores. ``lab.folder`` is a scratch folder for subprocesses; what must survive
belongs into the part's result.

Everything after the parts is computed each time and must be cheap. Tables become CSV (every digit) and Markdown;
figures PNG and SVG; checks a table with a verdict, and a check that is ``required`` and fails makes the command exit
with 1. Neither times nor dates belong into a table: CSV files are bit-equal when made again on the same machine. What
a part took is in ``timings.csv``. No number in a text is typed by hand: format what was computed.
"""

from nemo_sr.experiments.frame.experiment import Check, Experiment, Figure, Report, Table
from nemo_sr.experiments.frame.lab import Lab

__all__ = ["Check", "Experiment", "Figure", "Lab", "Report", "Table"]
