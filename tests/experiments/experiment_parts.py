# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""A small experiment, whose parts leave a mark each time they are computed."""

from pathlib import Path

from nemo_sr.experiments import Check, Experiment, Figure, Lab, Report, Table
from nemo_sr.noise import noise16  # noqa: F401  a source of the parts


def square(*, seed: int, marks: str, fails_at: int = -1) -> dict[str, float]:
    if seed == fails_at:
        raise RuntimeError("stopped")
    with Path(marks).open("a") as file:
        file.write(f"{seed}\n")
    return {"value": seed * seed / 3}


def experiment(marks, *, fails_at=-1, passed=True, required=True):
    def run(lab: Lab) -> Report:
        given = {"fails_at": fails_at} if fails_at >= 0 else {}
        values = [
            lab.part(square, seed=seed, marks=str(marks), **(given if seed == fails_at else {}))["value"]
            for seed in range(lab.choose(quick=2, full=4))
        ]
        return Report(
            summary=f"The last is `{values[-1]:.3g}`.",
            checks=[Check("one third", 1 / 3, values[1], passed, required=required)],
            tables=[Table("squares", "Squares", ["seed", "third | square"], list(enumerate(values)))],
            figures=[Figure("squares", "Squares.", lambda figure: figure.subplots().plot(values))],
        )

    return Experiment(name="small", title="A small one", page="theory", run=run)
