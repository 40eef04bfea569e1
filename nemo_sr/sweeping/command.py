# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Find the learning rates that strategies stand: train a grid of short runs, and compare their validation losses."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from nemo_sr.experiments.strategies.statistics import TOLERANCE
from nemo_sr.sweeping.grid import Point, find_changes, make_grid
from nemo_sr.sweeping.outcome import find_outcome
from nemo_sr.sweeping.report import describe_findings, find_all, write_report
from nemo_sr.sweeping.running import StoppedError, train_missing, write_array
from nemo_sr.training.config import ConfigError, rewrite_argv

_EPILOG = """
Words that are not listed here go to every run, as pretrain_gpt.py takes them:

  python scripts/sweep_lr.py --config-name=gpt_tiny_cpu --rates 1e-3,3e-3,1e-2 trainer.max_steps=100
  python scripts/sweep_lr.py --config-name=gpt_neo_350m --slurm trainer.max_steps=2000

The same command again keeps the runs that have finished or diverged, resumes those that were interrupted, and starts
those that have failed once more. docs/learning_rate.md says how to read the result.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status.

    Returns:
        0 when every run has an end, good or bad; 1 when some have failed or are unfinished; 2 for an impossible sweep.
    """
    parser = argparse.ArgumentParser(
        prog="sweep_lr.py",
        usage="%(prog)s [options] [--config-name=NAME] [key=value ...]",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--rates", metavar="LR,LR,...", help="highest learning rates. Default: 1/4 to 8 times optim.lr")
    parser.add_argument(
        "--strategies",
        metavar="NAME,NAME,...",
        default="adamw_sr,adamw",
        help="choices of the group optim. Default: %(default)s",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FOLDER",
        default=Path("runs/sweep_lr"),
        help="the sweep's folder. Default: %(default)s",
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        default=TOLERANCE,
        metavar="NATS",
        help="how far above the best validation loss of its strategy a stable one may be. Default: %(default)s",
    )
    parser.add_argument("--slurm", action="store_true", help="write an array of batch jobs instead of training here")
    parser.add_argument("--report", action="store_true", help="train nothing: report on what there is")
    options, words = parser.parse_known_args(argv)
    words = rewrite_argv(words)
    try:
        trains = not (options.slurm or options.report)
        points = make_grid(
            options.output.absolute(),
            options.strategies.split(","),
            _numbers(options.rates),
            words,
            trains_here=trains,
        )
        _check_folder(points)
        if options.slurm:
            script = write_array(points, options.output)
            print(  # noqa: T201
                f"{script} has {len(points)} runs. Submit it from the checkout:\n  . slurm/env.sh && sbatch {script}\n"
                "The same command with --report instead of --slurm says what they have found."
            )
            return 0
        if trains:
            with _hold(options.output):
                train_missing(points, lambda line: print(line, flush=True))  # noqa: T201
    except (ConfigError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except StoppedError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    outcomes = [find_outcome(point) for point in points]
    findings = find_all(outcomes, options.tolerance)
    options.output.mkdir(parents=True, exist_ok=True)
    command = shlex.join(["python", "scripts/sweep_lr.py", *(sys.argv[1:] if argv is None else argv)])
    paths = write_report(findings, options.output, tolerance=options.tolerance, command=command)
    print("\n".join(["", *describe_findings(findings, options.tolerance), ""]))  # noqa: T201
    for kind, path in paths.items():
        print(f"  {kind:6} {path}")  # noqa: T201
    print(f"  curves python scripts/plot_run.py {options.output}/*/lr_*")  # noqa: T201
    return 0 if all(outcome.is_settled for outcome in outcomes) else 1


def _numbers(text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"--rates must be numbers with commas between them; it is {text}. Give 1e-3,3e-3,1e-2."
        ) from None


def _check_folder(points: Sequence[Point]) -> None:
    """Refuse to mix runs of two configurations in one sweep."""
    for point in points:
        if keys := find_changes(point):
            raise ConfigError(
                f"A sweep's runs must have one configuration; {point.folder} was trained with other values of "
                f"{', '.join(keys)}. Take another --output, or remove that folder."
            )


@contextlib.contextmanager
def _hold(folder: Path) -> Iterator[None]:
    """Hold a sweep's folder: two commands must not train one run."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"One sweep at a time may use a folder; another one holds {file.name}. Wait for it, or take another "
                "--output."
            ) from None
        yield


if __name__ == "__main__":
    sys.exit(main())
