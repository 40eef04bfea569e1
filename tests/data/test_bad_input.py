# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501
"""Bad input: a message that says what is required, what was given and what to do; no output, no traceback, no hang."""

import bz2
import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [("A", "text " * 200_000), ("B", "more text")]
TRAIN = ("--train-tokenizer", 300)


def files(vocab, merges):
    return ("--vocab", vocab, "--merges", merges)


# name -> (arguments after --output, exit code, pieces of the message)
CASES = {
    "missing dump": (lambda f: ["--input", "none.xml.bz2", *TRAIN], 2, "existing file; none.xml.bz2 is not there. Check --input"),
    "folder as dump": (lambda f: ["--input", f.folder, *TRAIN], 2, "existing file; .*folder.xml is a folder"),
    "unknown ending": (lambda f: ["--input", f.text, *TRAIN], 2, "must end in .xml, .jsonl, .json, .bz2 or .gz, compressed or not; got .*text.txt"),
    "empty dump": (lambda f: ["--input", f.empty, *TRAIN], 2, "empty.xml cannot be read: the XML ends too early"),
    "truncated bz2": (lambda f: ["--input", f.cut_bz2, *TRAIN], 2, "cut.xml.bz2 cannot be read: its compressed data ends too early.*Download it again"),
    "truncated bz2, one worker": (lambda f: ["--input", f.cut_bz2, *TRAIN, "--workers", 1], 2, "compressed data ends too early"),
    "truncated gz": (lambda f: ["--input", f.cut_gz, *TRAIN], 2, "cut.xml.gz cannot be read: its compressed data ends too early"),
    "truncated xml": (lambda f: ["--input", f.cut_xml, *TRAIN], 2, "cut.xml cannot be read: the XML ends too early"),
    "no bz2": (lambda f: ["--input", f.no_bz2, *TRAIN], 2, "no.xml.bz2 cannot be read: its data is not what the ending .bz2 promises"),
    "no gz": (lambda f: ["--input", f.no_gz, *TRAIN], 2, "no.xml.gz cannot be read: its compressed data .* is damaged"),
    "damaged bz2": (lambda f: ["--input", f.damaged, *TRAIN], 2, "damaged.xml.bz2 cannot be read"),
    "no XML": (lambda f: ["--input", f.no_xml, *TRAIN], 2, "no.xml cannot be read: it is not well-formed XML"),
    "other XML": (lambda f: ["--input", f.other_xml, *TRAIN], 2, "outermost element is <mediawiki>; in .* it is <html>"),
    "other layout": (lambda f: ["--input", f.other_layout, *TRAIN], 2, "layout.xml cannot be read: its XML is not laid out"),
    "no article": (lambda f: ["--input", f.no_article, *TRAIN], 2, "at least one article.*has 3 pages: 1 redirects, 1 in other namespaces, 0 without wiki markup, 0 disambiguations, 1 empty"),
    "vocabulary of another tokenizer": (lambda f: ["--input", f.dump, *files(f.vocab, f.merges)], 2, "must belong together"),
    "missing vocabulary": (lambda f: ["--input", f.dump, *files("none.json", f.merges)], 2, "vocabulary file, JSON, is needed; there is none at none.json"),
    "missing merges": (lambda f: ["--input", f.dump, *files(f.vocab, "none.txt")], 2, "merges file.*is needed; there is none at none.txt"),
    "vocabulary that is not JSON": (lambda f: ["--input", f.dump, *files(f.text, f.merges)], 2, "must be JSON; .*text.txt is not"),
    "vocabulary without merges": (lambda f: ["--input", f.dump, "--vocab", f.vocab], 2, "got --vocab alone. Add --merges"),
    "merges without vocabulary": (lambda f: ["--input", f.dump, "--merges", f.merges], 2, "got --merges alone. Add --vocab"),
    "two tokenizers": (lambda f: ["--input", f.dump, *files(f.vocab, f.merges), *TRAIN], 2, "got --vocab and --merges and --train-tokenizer"),
    "no tokenizer": (lambda f: ["--input", f.dump], 2, "a tokenizer must be named, and only one; got none"),
    "small tokenizer": (lambda f: ["--input", f.dump, "--train-tokenizer", 256], 2, "at least 257 .*got 256. Raise it"),
    "no workers": (lambda f: ["--input", f.dump, *TRAIN, "--workers", 0], 2, "--workers must be at least 1; got 0"),
    "no name": (lambda f: ["--input", f.dump, *TRAIN, "--output", "out/"], 2, "a folder and a name, DIR/NAME; got 'out/'"),
    "unwritable output": (lambda f: ["--input", f.dump, *TRAIN, "--output", f"{f.text}/x"], 1, "must be writable; .*text.txt is not"),
    "unwritable output of the system": (lambda f: ["--input", f.dump, *TRAIN, "--output", "/proc/none/x"], 1, "must be writable; /proc/none is not"),
    "output taken by a folder": (lambda f: ["--input", f.dump, *TRAIN, "--output", f.taken / "x"], 2, "must be a file; .*train_data.jsonl is a folder"),
}  # fmt: skip


@pytest.fixture(scope="module")
def inputs(tmp_path_factory, dump_builder, sample_data):
    folder = tmp_path_factory.mktemp("bad")
    xml = dump_builder(PAGES).encode()
    packed = bz2.compress(xml)
    merges = (sample_data / "gpt2-merges.txt").read_text(encoding="utf-8").split("\n")
    contents = {
        "dump.xml.bz2": packed,
        "text.txt": b"just text",
        "empty.xml": b"",
        "cut.xml.bz2": packed[:-20],
        "cut.xml.gz": gzip.compress(xml)[:-20],
        "cut.xml": xml[:-40],
        "no.xml.bz2": b"just text",
        "no.xml.gz": b"just text",
        "damaged.xml.bz2": packed[: len(packed) // 2] + b"\0\0\0\0" + packed[len(packed) // 2 + 4 :],
        "no.xml": b"just text",
        "other.xml": b"<html><body>text</body></html>",
        "layout.xml": b"<mediawiki><note>text</note></mediawiki>",
        "none.xml": dump_builder([("R", "#REDIRECT [[A]]"), ("T", "t", 10), ("E", "<!-- x -->")]).encode(),
        "merges.txt": "\n".join(merges[:100]).encode(),
    }
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    (folder / "folder.xml").mkdir()
    (folder / "taken" / "train_data.jsonl").mkdir(parents=True)
    keys = {
        "dump": "dump.xml.bz2", "text": "text.txt", "empty": "empty.xml", "cut_bz2": "cut.xml.bz2",
        "cut_gz": "cut.xml.gz", "cut_xml": "cut.xml", "no_bz2": "no.xml.bz2", "no_gz": "no.xml.gz",
        "damaged": "damaged.xml.bz2", "no_xml": "no.xml", "other_xml": "other.xml", "other_layout": "layout.xml",
        "no_article": "none.xml", "merges": "merges.txt", "folder": "folder.xml", "taken": "taken",
    }  # fmt: skip
    paths = {key: folder / name for key, name in keys.items()}
    return SimpleNamespace(vocab=sample_data / "gpt2-vocab.json", **paths)


# Imports the program once, then runs every command line in a process of its own, forked from this one.
DRIVER = """
import json, os, sys
from nemo_sr.data.preprocess import main
for number, argv in enumerate(json.load(sys.stdin)):
    if (child := os.fork()) == 0:
        errors = os.open(f"errors{number}", os.O_WRONLY | os.O_CREAT)
        os.dup2(errors, 1)
        os.dup2(errors, 2)
        sys.exit(main(argv))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def results(inputs, tmp_path_factory):
    """Run every case; name -> (exit code, what it wrote, folder that must stay empty)."""
    folder = tmp_path_factory.mktemp("outputs")
    outputs = {name: folder / re.sub(r"\W", "_", name) for name in CASES}
    command_lines = []
    for name, (arguments, _, _) in CASES.items():
        outputs[name].mkdir()
        line = ["--output", outputs[name] / "deep" / "x", "--workers", 2, *arguments(inputs)]
        command_lines.append([str(argument) for argument in line])
    run = subprocess.run(
        [sys.executable, "-c", DRIVER],
        input=json.dumps(command_lines),
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=180,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        check=True,
    )
    codes = map(int, run.stdout.split())
    errors = [(folder / f"errors{number}").read_text(encoding="utf-8") for number in range(len(CASES))]
    return dict(zip(CASES, zip(codes, errors, outputs.values(), strict=True), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_bad_input(results, name):
    code, written, folder = results[name]
    _, expected_code, message = CASES[name]
    assert code == expected_code, written
    assert re.search(message, written)
    assert "Traceback" not in written
    assert written.count("\n") <= 6  # the message, and argparse's usage
    assert list(folder.iterdir()) == []


def test_nothing_was_left_elsewhere(results, inputs):
    assert os.listdir(inputs.taken) == ["train_data.jsonl"]
    assert json.loads(inputs.vocab.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["missing dump", "truncated bz2", "no XML"])
def test_bad_input_of_the_script(run_script, inputs, tmp_path, name):
    arguments, code, message = CASES[name]
    result = run_script("preprocess_wikipedia.py", "--output", tmp_path / "out" / "x", *arguments(inputs), timeout=60)
    assert result.returncode == code
    assert re.search(message, result.stderr)
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []
