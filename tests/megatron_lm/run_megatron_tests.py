# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Run Megatron-LM's tests of its optimizers and of their checkpoints on this CPU, with adamw_sr for their Adam.

    python tests/megatron_lm/run_megatron_tests.py MEGATRON_LM [--write docs/megatron_lm_tests.md]
    python tests/megatron_lm/run_megatron_tests.py MEGATRON_LM --file dist_checkpointing -k EXPRESSION

MEGATRON_LM is a checkout of NVIDIA's repository (core_v0.16.1); its tests need the packages six, mock, click and
requests. Most start eight processes: half an hour on two cores. A test that fails must be among those of
not_applicable.py, and fail as it says there; ``--adam`` runs them with Megatron's own Adam instead, and only prints
what came out.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from not_applicable import NOT_APPLICABLE

ROOT = Path(__file__).parents[2]
OPTIMIZER, CHECKPOINTS = "tests/unit_tests/test_optimizer.py", "tests/unit_tests/dist_checkpointing/test_optimizer.py"
PYTEST = ["-m", "pytest", "-p", "megatron_plugin", "-p", "no:cacheprovider", "-q", "-o", "addopts="]
FOR_RANKS = "test_get_megatron_optimizer_with_custom_process_groups"
STARTS = [(OPTIMIZER, 1, None), (OPTIMIZER, 2, FOR_RANKS), (OPTIMIZER, 8, FOR_RANKS), (CHECKPOINTS, 8, None)]


def main():
    """Run them, print or write the list, and fail if it is not as expected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("megatron_lm", type=Path)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--file", default="", help="only files that have this in their path")
    parser.add_argument("-k", dest="expression")
    parser.add_argument("--adam", action="store_true")
    options = parser.parse_args()
    outcomes = {}
    for file, num_ranks, tests in STARTS:
        if options.file not in file:
            continue
        choice = " and ".join(f"({part})" for part in (tests, options.expression) if part)
        merge(outcomes, run(file, num_ranks, choice, options))
    if options.adam:
        for test, (outcome, reason) in outcomes.items():
            print(outcome, test, reason[:150])
        return
    page, surprises = describe(outcomes)
    (options.write.write_text if options.write else print)(page)
    sys.exit("\n".join(surprises) or None)


def run(file, num_ranks, choice, options):
    """Return {test: (outcome, reason)}; a test has passed if it has on every rank."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "ADAM": str(int(options.adam)),
            "OMP_NUM_THREADS": "1",
            "OUTCOMES": f"{folder}/rank",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
        }
        subprocess.run(
            [sys.executable, *launcher, *PYTEST, "-k", choice, file],
            cwd=options.megatron_lm,
            env=environment,
            stdout=sys.stderr,
            check=False,
        )
        ranks = [read(path) for path in Path(folder).iterdir()]
    if len(ranks) < num_ranks:
        sys.exit(f"{file}: {len(ranks)} of {num_ranks} ranks have run a test. See the output above.")
    result = {}
    for test in sorted({test for rank in ranks for test in rank}):
        each = [rank.get(test, ("failed", "the rank did not reach this test")) for rank in ranks]
        result[test] = next((entry for entry in each if entry[0] != "passed"), each[0])
    return result


def read(path):
    """Return what a rank has found."""
    entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {entry["test"]: (entry["outcome"], entry["reason"]) for entry in entries}


def merge(outcomes, found):
    """Add a start's findings: a test that is skipped on one number of ranks may run on another."""
    for test, entry in found.items():
        if outcomes.get(test, ("skipped",))[0] == "skipped":
            outcomes[test] = entry


def describe(outcomes):
    """Return the list as a page, and what is not as not_applicable.py expects it."""
    surprises, rows = [], collections.Counter()
    for test, (outcome, message) in outcomes.items():
        file, name = test.removeprefix("tests/unit_tests/").split("::", 1)
        function = re.sub(r"\[.*", "", name)
        entry = next((entry for entry in NOT_APPLICABLE if re.fullmatch(entry.tests, name)), None)
        if entry is None or (entry.outcome == "skipped" and outcome == "passed"):
            result = "pass" if outcome == "passed" else "**unexpected**"
        elif outcome == entry.outcome and re.search(entry.message, message):
            result = f"does not apply: {entry.reason}"
        else:
            result = "**unexpected**"
        if result == "**unexpected**":
            surprises.append(f"{test} {outcome}: {message}")
        rows[file, function, result] += 1
    passed = sum(count for (_, _, result), count in rows.items() if result == "pass")
    others = len(outcomes) - passed - len(surprises)
    lines = [
        "# Megatron-LM's own tests with adamw_sr",
        "",
        "The tests of core_v0.16.1 of the optimizer and its distributed checkpoints, on a CPU over gloo, with adamw_sr",
        f"for their Adam: {passed} pass, {others} do not apply. Made by",
        "`python tests/megatron_lm/run_megatron_tests.py MEGATRON_LM --write docs/megatron_lm_tests.md`; what was put",
        "in the place of GPUs, Transformer Engine and Adam: [the plugin](../tests/megatron_lm/megatron_plugin.py).",
        "",
        "| file | test | cases | result |",
        "|---|---|---|---|",
    ]
    lines += [f"| {file} | {function} | {count} | {result} |" for (file, function, result), count in rows.items()]
    return "\n".join(lines) + "\n", surprises


if __name__ == "__main__":
    main()
