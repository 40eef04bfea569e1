# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What a batch job checks and decides before it starts its ranks: from nodes and GPUs to the command of every rank.

slurm/run.slurm runs it through scripts/preflight.py on one of the job's nodes, and reads the decisions from standard
output, one ``name=value`` a line. What a person should read goes to standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from omegaconf import DictConfig

import nemo_sr
from nemo_sr.training.config import ConfigError, compose_config, rewrite_argv
from nemo_sr.training.guidance import show_config
from nemo_sr.training.validate import DEVICES, checks_of

# Variables that may hold what nobody else should read.
_SECRET = re.compile(r"TOKEN|SECRET|PASS|KEY|CREDENTIAL|AUTH", re.IGNORECASE)


@dataclass(frozen=True)
class Allocation:
    """What the batch system has given the job."""

    nodes: int

    gpus_per_node: int
    """0: no GPU, or none that it counts."""

    tasks_per_node: int | None = None
    """Tasks on each node, if the job asked for a number."""

    cpus_per_node: int | None = None
    """CPUs on each node, if the batch system says how many."""

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> Allocation:
        """Read it from what slurm/job.sh exports.

        Raises:
            ConfigError: a variable is no number.
        """
        numbers = []
        for name, default in _NUMBERS:
            value = env.get(name) or default
            if value and not value.isdecimal():
                raise ConfigError(f"{name} must be a number; it is {value}. Correct the options of sbatch.")
            numbers.append(int(value) if value else None)
        nodes, gpus, tasks, cpus = numbers
        assert nodes is not None
        assert gpus is not None
        return cls(nodes, gpus, tasks, cpus)


_NUMBERS = (("JOB_NODES", "1"), ("JOB_GPUS_PER_NODE", "0"), ("JOB_TASKS_PER_NODE", ""), ("JOB_CPUS_PER_NODE", ""))


@dataclass(frozen=True)
class Decisions:
    """How the ranks are started."""

    words: tuple[str, ...]
    """The command line of every rank."""

    config: DictConfig
    """The configuration that it composes."""

    overrides: tuple[str, ...]
    """The words of it that were added."""

    notes: tuple[str, ...]
    """What the user should know."""

    @property
    def run_folder(self) -> Path:
        """The run's folder."""
        return Path(self.config.exp_manager.explicit_log_dir).absolute()

    @property
    def last_step(self) -> int:
        """The step at which the run ends."""
        trainer = self.config.trainer
        return min(int(step) for step in (trainer.max_steps, trainer.stop_after_steps) if step is not None)

    def lines(self) -> list[str]:
        """Return them in the form that slurm/job.sh reads."""
        return [
            f"ranks_per_node={self.config.trainer.devices}",
            f"run_folder={self.run_folder}",
            f"last_step={self.last_step}",
            *(f"override={word}" for word in self.overrides),
        ]


def decide(words: Sequence[str], allocation: Allocation, places: Mapping[str, str]) -> Decisions:
    """Fit a configuration to what the batch system has given.

    Nodes and GPUs are stated once, to the batch system: ``trainer.num_nodes`` and ``trainer.devices`` follow them.

    Args:
        words: The command line, Hydra's.
        allocation: Nodes and GPUs.
        places: Folders that the configurations' relative paths ``data/...`` and ``runs/...`` stand for.

    Raises:
        ConfigError: the command line says another number than the batch system, or has a mistake.
    """
    given = compose_config(words)
    on_gpus = given.trainer.accelerator == "gpu"
    if on_gpus and not allocation.gpus_per_node:
        raise ConfigError(
            "trainer.accelerator=gpu needs GPUs; SLURM has given the job none. Set SBATCH_GPUS_PER_NODE in "
            "slurm/env.sh, submit with --gpus-per-node=N, or set trainer.accelerator=cpu."
        )
    ranks = allocation.gpus_per_node if on_gpus else allocation.tasks_per_node or given.trainer.devices
    if allocation.tasks_per_node not in (None, 1, ranks):
        raise ConfigError(
            f"--ntasks-per-node must be the number of GPUs of a node, one rank each; they are "
            f"{allocation.tasks_per_node} and {ranks}. Leave it out, or change --gpus-per-node."
        )
    if on_gpus and allocation.cpus_per_node is not None and allocation.cpus_per_node < ranks:
        raise ConfigError(
            f"A rank must have a CPU of its own; SLURM has given the job {allocation.cpus_per_node} on each node for "
            f"{ranks} ranks. Set SBATCH_CPUS_PER_GPU or SBATCH_EXCLUSIVE in slurm/env.sh, or submit with "
            "--cpus-per-gpu=N or --exclusive."
        )
    notes = []
    what = "GPUs" if on_gpus else "tasks"
    for key, value, unit in (
        ("num_nodes", allocation.nodes, "nodes"),
        ("devices", ranks, f"{what} on each node"),
    ):
        if given.trainer[key] == value:
            continue
        if any(re.match(rf"(\+\+|\+)?trainer\.{key}=", word) for word in words):
            raise ConfigError(
                f"trainer.{key} must be what SLURM has given the job, {value} {unit}; it is {given.trainer[key]}. "
                f"Leave trainer.{key} out, or submit with {_option(key, on_gpus)}={given.trainer[key]}."
            )
        notes.append(f"trainer.{key}={value} from SLURM, in place of the configuration's {given.trainer[key]}.")
    overrides = [f"trainer.num_nodes={allocation.nodes}", f"trainer.devices={ranks}", *_move(given, places)]
    all_words = (*words, *overrides)
    return Decisions(all_words, compose_config(all_words), tuple(overrides), tuple(notes))


def _option(key: str, on_gpus: bool) -> str:
    if key == "num_nodes":
        return "--nodes"
    return "--gpus-per-node" if on_gpus else "--ntasks-per-node"


def _move(config: DictConfig, places: Mapping[str, str]) -> list[str]:
    """Return the overrides by which relative paths lead to where data and results are."""
    paths = {
        "exp_manager.explicit_log_dir": config.exp_manager.explicit_log_dir,
        "data.data_prefix": config.data.data_prefix,
    }
    overrides = []
    for key, value in paths.items():
        items = [value] if isinstance(value, str) else list(value)
        moved = [_absolute(item, places) if isinstance(item, str) else item for item in items]
        if moved != items:
            # Hydra reads JSON's strings and lists.
            overrides.append(f"{key}={json.dumps(moved[0] if isinstance(value, str) else moved)}")
    return overrides


def _absolute(path: str, places: Mapping[str, str]) -> str:
    first, _, rest = path.partition("/")
    return os.path.join(places[first], rest) if first in places else path


def main(argv: Sequence[str]) -> int:
    """Run the command line; return the exit status: 0, or 2 for a job that cannot run."""
    parser = argparse.ArgumentParser(prog="preflight.py", allow_abbrev=False, add_help=False)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--record", metavar="FOLDER")
    args, words = parser.parse_known_args(argv)
    words = rewrite_argv(words)
    warnings.filterwarnings("ignore", module=r"(megatron|torch|nemo_sr)\b")
    places = {name: os.environ[variable] for name, variable in _PLACES.items() if os.environ.get(variable)}
    try:
        decisions = decide(words, Allocation.from_environment(os.environ), places)
        if args.dry_run:
            status = _show(decisions)
        else:
            status = 0
            for _, check in checks_of(decisions.config):
                check()
            _record(decisions, decisions.run_folder / args.record)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 2
    for note in decisions.notes:
        print(note, file=sys.stderr)  # noqa: T201
    print("\n".join(decisions.lines()))  # noqa: T201
    return status


_PLACES = {"data": "DATA_DIR", "runs": "RESULTS_DIR"}


def _show(decisions: Decisions) -> int:
    """Print configuration, plan and every check; return 2 if one fails."""
    say = sys.stderr.write
    say(f"Configuration:\n{_indent(show_config(decisions.config))}")
    say(f"Plan:\n{_indent(_plan(decisions))}")
    say("Checks:\n")
    status = 0
    for what, check in checks_of(decisions.config):
        if what == DEVICES:
            say(f"  not here  {what}: the job checks them where it runs\n")
            continue
        try:
            check()
            say(f"  ok        {what}\n")
        except ConfigError as error:
            say(f"  FAILED    {what}: {error}\n")
            status = 2
    return status


def _indent(text: str) -> str:
    return "".join(f"  {line}\n" for line in text.splitlines())


def _plan(decisions: Decisions) -> str:
    """Return the plan of memory of each GPU."""
    if decisions.config.trainer.accelerator == "cpu":
        return "trainer.accelerator=cpu: no GPU's memory to plan."
    from nemo_sr.planning.command import main as plan

    text = io.StringIO()
    memory = os.environ.get("GPU_MEMORY") or "80"
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        plan(["--top=0", f"--gpu-memory={memory}", *decisions.words])
    return text.getvalue()


def _record(decisions: Decisions, folder: Path) -> None:
    """Write down beside the run what it runs with."""
    folder.mkdir(parents=True, exist_ok=True)
    packages = sorted({f"{found.name}=={found.version}" for found in distributions()}, key=str.lower)
    where = [f"# {sys.executable}, Python {sys.version.split()[0]}, nemo_sr from {Path(nemo_sr.__file__).parent}"]
    environment = [f"{name}={value}" for name, value in sorted(os.environ.items()) if not _SECRET.search(name)]
    for name, lines in {
        "config.yaml": [show_config(decisions.config)],
        "packages.txt": [*where, *packages],
        "environment.txt": environment,
        "plan.txt": [_plan(decisions)],
    }.items():
        (folder / name).write_text("\n".join([*lines, ""]), encoding="utf-8")
