# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Runs test suites against the supported versions of Python, torch and Megatron-core; the table goes into the README.

Usage: python tests/compatibility.py [ROW ...]      (`make compat`, `make compat ONLY="ROW ..."`; no row: all)

Every row of the table has a virtual environment in .venvs, which is kept. Those of one Python and one torch share the
folder that torch is in (some gigabytes each where torch is built for CUDA). Needs the Pythons, on the PATH or from
pyenv, and a network for the packages. Rows that were not run stay in the table as they were.
"""

import contextlib
import datetime
import os
import re
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
VENVS = ROOT / ".venvs"
README = ROOT / "README.md"
BEGIN, END = "<!-- made by `make compat` -->\n", "<!-- end -->\n"
HEAD = "| row | Python | torch | megatron-core | tests | result | on |\n|---|---|---|---|---|---|---|\n"
TOOLS = [
    "pytest>=8",
    "pytest-timeout",
    "hypothesis>=6",
    "expecttest",
    "numpy",
    "psutil>=5.9",
    "hydra-core>=1.3.2",
    "einops",
    "setuptools>=70.1",
]
# Versions that a row chooses itself, or that follow from those.
CHOSEN = re.compile(r"(torch|triton|numpy|megatron-core|(nvidia|cuda)-\S+)==")
LIMIT_S = 3600

MEGATRON = ["tests/distributed", "tests/megatron"]
# What needs neither Megatron-core nor NeMo; test_install.py makes environments of its own.
UNITS = ["tests/kernels", *(f"tests/test_{name}.py" for name in (
    "capturable", "dcp", "diagnostics", "freezing", "layout", "loading", "migration", "noise", "optimizer", "replicas",
    "rounding", "sharding", "torch_infrastructure", "update", "vectors",
))]  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One line of the table: what is installed, and which tests run."""

    name: str
    python: str
    torch: str  # a version, or "newest"
    megatron: str | None = None

    @property
    def tests(self) -> list[str]:
        """Files and folders of the tests."""
        return MEGATRON if self.megatron else UNITS


ROWS = [
    Row("mcore-0.14.0", "3.11", "2.13.0", "0.14.0"),
    Row("mcore-0.15.3", "3.11", "2.13.0", "0.15.3"),
    Row("mcore-0.16.1", "3.11", "2.13.0", "0.16.1"),
    Row("mcore-0.19.2", "3.12", "2.13.0", "0.19.2"),
    Row("python-3.10", "3.10", "2.6.0"),
    Row("python-3.13", "3.13", "newest"),
]


class RowError(Exception):
    """A row cannot be run."""


def find_python(version: str) -> Path:
    """Return an interpreter of a version, from the PATH or pyenv.

    Raises:
        RowError: there is none.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    on_path = shutil.which(f"python{version}")
    for path in [*([Path(on_path)] if on_path else []), *sorted(pyenv.glob(f"{version}.*/bin/python"))]:
        said = subprocess.run(
            [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True, text=True
        )
        if said.stdout.strip() == version:
            return path
    raise RowError(f"no Python {version} on the PATH or in {pyenv}")


def prepare(row: Row) -> Path:
    """Return a row's Python, made anew or as it was left.

    Raises:
        RowError: something cannot be installed.
    """
    base = VENVS / f"python-{row.python}-torch-{row.torch}"
    ours = VENVS / row.name
    for folder in (base, ours):
        if not (folder / "bin" / "python").exists():
            run_or_fail([str(find_python(row.python)), "-m", "venv", str(folder)], f"no environment {folder.name}")
    # The row's environment sees the packages of the one with torch.
    packages = next((base / "lib").glob("python*/site-packages"))
    (next((ours / "lib").glob("python*/site-packages")) / "torch.pth").write_text(f"{packages}\n", encoding="utf-8")
    constraints = ours / "constraints.txt"
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    constraints.write_text("".join(line for line in lines if not CHOSEN.match(line)), encoding="utf-8")
    torch = ["--upgrade", "torch"] if row.torch == "newest" else [f"torch=={row.torch}"]
    megatron = [f"megatron-core=={row.megatron}"] if row.megatron else []
    install(base, torch)  # older ones insist on older packages than the constraints
    install(ours, ["--constraint", str(constraints), *TOOLS, *megatron])
    return ours / "bin" / "python"


def install(folder: Path, packages: list[str]) -> None:
    """Install packages into an environment.

    Raises:
        RowError: pip fails.
    """
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run_or_fail([*pip, *packages], f"cannot install {packages[-1]}")


def run_or_fail(command: list[str], what: str) -> None:
    """Run a command.

    Raises:
        RowError: it fails; the message is `what`.
    """
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        raise RowError(what)


def run_tests(row: Row, python: Path) -> str:
    """Run a row's tests; returns what the table says of them.

    Raises:
        RowError: pytest ends without a report.
    """
    report = VENVS / row.name / "report.xml"
    report.unlink(missing_ok=True)
    left = {key: value for key, value in os.environ.items() if not key.startswith(("NEMO_SR_", "PYTHON"))}
    environment = {**left, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [str(python), "-m", "pytest", "-p", "no:cacheprovider", "-m", "not slow", f"--junitxml={report}"]
    process = subprocess.Popen([*command, *row.tests], cwd=ROOT, env=environment, start_new_session=True)
    try:
        process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        raise RowError(f"pytest has not ended in {LIMIT_S} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if not report.exists():
        raise RowError(f"pytest ended with status {process.returncode}")
    counts = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for suite in ElementTree.parse(report).getroot().iter("testsuite"):
        for key in counts:
            counts[key] += int(suite.get(key, 0))
    failed = counts["failures"] + counts["errors"]
    passed = counts["tests"] - failed - counts["skipped"]
    if process.returncode or failed or not passed:
        return f"**failed**: {failed} failed, {passed} passed, {counts['skipped']} skipped"
    return f"{passed} passed, {counts['skipped']} skipped"


def describe(row: Row, result: str) -> str:
    """Return a row's line of the table."""
    version = "import importlib.metadata as m; print(m.version('torch').partition('+')[0])"
    python = VENVS / row.name / "bin" / "python"
    with contextlib.suppress(OSError):
        torch = subprocess.run([python, "-c", version], capture_output=True, text=True, check=False).stdout.strip()
    suite = "layouts, checkpoints" if row.megatron else "without Megatron-core"
    cells = [row.name, row.python, torch or row.torch, row.megatron or "-", suite, result, f"{datetime.date.today()}"]
    return "| " + " | ".join(cells) + " |\n"


def write_table(lines: dict[str, str]) -> None:
    """Put lines into the README's table, by the names of their rows; the others stay."""
    before, rest = README.read_text(encoding="utf-8").split(BEGIN)
    old, after = rest.split(END)
    kept = {line.split("|")[1].strip(): line for line in old.splitlines(keepends=True)[2:]}
    table = "".join({**kept, **lines}[row.name] for row in ROWS if row.name in {**kept, **lines})
    new = README.with_suffix(".new")
    new.write_text(before + BEGIN + HEAD + table + END + after, encoding="utf-8")
    new.replace(README)


def main(names: list[str]) -> int:
    """Run rows; returns the exit status."""
    if unknown := set(names) - {row.name for row in ROWS}:
        print(f"rows are {', '.join(row.name for row in ROWS)}; got {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    lines = {}
    for row in ROWS:
        if names and row.name not in names:
            continue
        print(f"--- {row.name}", flush=True)
        try:
            result = run_tests(row, prepare(row))
        except RowError as error:
            result = f"**failed**: {error}"
        lines[row.name] = describe(row, result)
        write_table({row.name: lines[row.name]})
        print(lines[row.name], end="", flush=True)
    return int(any("**failed**" in line for line in lines.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
