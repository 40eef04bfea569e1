# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Every command in the documents says how it is checked, and is: its script exists and knows its options and keys."""

import ast
import json
import os
import re
import subprocess
import sys

import griffe
import pytest

from documented import DOCUMENTS, ROOT, read_all_blocks
from documented_commands import Uses, check_command, split_commands
from nemo_sr.training.keys import schema_keys

BLOCKS = read_all_blocks()
INLINE = re.compile(r"(?<!`)`((?:python|torchrun|make|sbatch|slurm/\w+\.slurm)\s[^`]+)`(?!`)")
KEY = re.compile(r"`((?:trainer|exp_manager|optim|data|model)\.[a-z_.]+)(?:=[^`]*)?`")
# NeMo's older spelling, and a method of Lightning's.
OTHERS = ("model.optim.", "model.data.", "trainer.fit")


def inline_commands():
    """The commands inside of paragraphs, with where they are."""
    for document in DOCUMENTS:
        text = re.sub(
            r"^(```.*?^```|    .*?)$", "", document.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
        )
        for found in INLINE.finditer(text):
            yield f"{document.relative_to(ROOT)}: {found[1]}", " ".join(found[1].split())


COMMANDS = [*((str(block), block.text) for block in BLOCKS if block.is_commands), *inline_commands()]


@pytest.fixture(scope="module")
def known_options():
    """The options of each program that the documents use with options."""
    uses = Uses()
    for _, text in COMMANDS:
        for words in split_commands(text):
            check_command(words, uses)
    known = {program: own_options(program) for program in uses.options}
    others = [program for program, options in known.items() if not options]
    done = subprocess.run(
        [sys.executable, ROOT / "tests/print_help.py", *others],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for program, text in json.loads(done.stdout.splitlines()[-1]).items():
        known[program] = set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", text))
    return known


def own_options(program):
    """The options that a script itself adds to its parser, which spares it a start; none if others do."""
    script = ROOT / program.split()[0]
    source = script.read_text(encoding="utf-8") if script.suffix == ".py" else ""
    return set(re.findall(r'add_argument\(\s*"(--[\w-]+)"', source))


def test_every_block_of_commands_says_how_it_is_checked():
    unmarked = [f"{block}: {block.text.splitlines()[0]}" for block in BLOCKS if block.is_commands and not block.mark]
    assert not unmarked, f"{unmarked} need a mark in front, <!-- run --> or another: see tests/documented.py"
    assert [str(block) for block in BLOCKS if block.is_commands and block.mark == "prints"] == []


@pytest.mark.parametrize(("where", "text"), COMMANDS, ids=[where for where, _ in COMMANDS])
def test_what_a_command_relies_on_is_there(known_options, where, text):
    uses = Uses()
    for words in split_commands(text):
        check_command(words, uses)
    for program, options in uses.options.items():
        unknown = options - known_options[program] - {"--help"}
        uses.problems += [f"{program} has no {option}" for option in sorted(unknown)]
    assert uses.problems == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_keys_that_are_named_exist(document):
    named = {key.rstrip(".") for key in KEY.findall(document.read_text(encoding="utf-8")) if not key.startswith(OTHERS)}
    known = schema_keys()
    groups = {key.rpartition(".")[0] for key in known}
    assert sorted(named - set(known) - groups) == []


@pytest.fixture(scope="module")
def package():
    """The package as its sources have it, read without importing Megatron-core."""
    return griffe.load("nemo_sr", search_paths=[ROOT])


def has_name(package, name):
    try:
        return bool(package[name])
    except KeyError:
        return False


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "python"], ids=str)
def test_python_names_what_the_package_has(package, block):
    # "..." for further arguments may stand where Python allows none.
    tree = ast.parse(re.sub(r",\s*\.\.\.(?=,?\s*[)}\]])", "", block.text))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names = [f"{node.module}.{name.name}" for node in imports for name in node.names]
    ours = [name.removeprefix("nemo_sr.") for name in names if name.startswith("nemo_sr.")]
    assert [name for name in ours if not has_name(package, name)] == []


def test_the_reference_has_every_public_name(package):
    reference = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    described = {name.rpartition(".")[2] for name in re.findall(r"^::: (\S+)$", reference, re.MULTILINE)}
    assert {*map(str, package.exports), *map(str, package["megatron"].exports)} - described == set()
