# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Shards made apart and joined have the bytes of one run, and nothing else is joined."""

import json
import re
import shutil

import pytest

from nemo_sr.data import sources
from nemo_sr.data.preprocess import main
from nemo_sr.data.vocabulary import MERGES_NAME, VOCAB_NAME

TEXTS = [f"Article {number} has {'many ' * (number % 50)}words." for number in range(120)]


@pytest.fixture
def small_items(monkeypatch):
    monkeypatch.setattr(sources, "_SEGMENT_SIZES", {".bz2": (300, 300), "": (1500, 1500)})


@pytest.fixture
def arguments(sample_data):
    return ["--vocab", str(sample_data / VOCAB_NAME), "--merges", str(sample_data / MERGES_NAME), "--workers", "1"]


def outputs(folder):
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    report = json.loads(files.pop("report.json"))
    report.pop("seconds")
    report.pop("shards", None)
    return files, report


def make_shards(inputs, folder, arguments, count):
    for number in reversed(range(count)):  # in any order
        assert main([*inputs, "--output", str(folder / "x"), *arguments, "--shard", f"{number}/{count}"]) == 0


def inputs_of(kind, tmp_path, write_dump):
    if kind == "jsonl":
        path = tmp_path / "texts.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
        return ["--input-jsonl", str(path)]
    pages = [(f"A{number}", text) for number, text in enumerate(TEXTS)]
    halves = [write_dump(pages[:70], f"1.{kind}"), write_dump(pages[70:], f"2.{kind}")]
    return ["--input", *map(str, halves)]


@pytest.mark.parametrize("count", [2, 9])
@pytest.mark.parametrize("kind", ["xml", "xml.bz2", "jsonl"])
def test_merged_shards_are_one_run(write_dump, tmp_path, arguments, small_items, kind, count):
    inputs = inputs_of(kind, tmp_path, write_dump)
    assert main([*inputs, "--output", str(tmp_path / "whole/x"), *arguments]) == 0
    make_shards(inputs, tmp_path / "parts", arguments, count)
    assert main(["merge", "--output", str(tmp_path / "parts/x")]) == 0
    assert outputs(tmp_path / "parts") == outputs(tmp_path / "whole")
    for folder in (tmp_path / "parts").glob("shard-*"):
        shutil.rmtree(folder)
    assert main([*inputs, "--output", str(tmp_path / "parts/x"), *arguments]) == 0  # it is done
    assert outputs(tmp_path / "parts") == outputs(tmp_path / "whole")


def test_shards_without_articles(write_dump, tmp_path, arguments):
    inputs = ["--input", str(write_dump([("A", "one article")]))]
    assert main([*inputs, "--output", str(tmp_path / "whole/x"), *arguments]) == 0
    make_shards(inputs, tmp_path / "parts", arguments, 3)
    assert main(["merge", "--output", str(tmp_path / "parts/x")]) == 0
    assert outputs(tmp_path / "parts") == outputs(tmp_path / "whole")


def edit_report(folder):
    report = json.loads((folder / "report.json").read_text())
    report["source"]["append_eod"] = False
    (folder / "report.json").write_text(json.dumps(report))


BREAKS = {
    "a shard is missing": (lambda parts: shutil.rmtree(parts / "shard-1-of-3"), "1 are not: 1. Run --shard"),
    "a shard is not complete": (lambda parts: (parts / "shard-2-of-3/report.json").unlink(), "1 are not: 2"),
    "other shards": (lambda parts: (parts / "shard-0-of-2").mkdir(), r"there are some of \[2, 3\]"),
    "no shards": (lambda parts: [shutil.rmtree(path) for path in parts.iterdir()], "there are none"),
    "other options": (lambda parts: edit_report(parts / "shard-1-of-3"), "shard-1-of-3 differs .* in append_eod"),
    "cut off": (lambda parts: (parts / "shard-1-of-3/x_text_document.bin").write_bytes(b""), "it has 0. Make it again"),
}


@pytest.mark.parametrize(("damage", "message"), BREAKS.values(), ids=BREAKS.keys())
def test_what_does_not_belong_together_is_refused(
    write_dump, tmp_path, arguments, small_items, capsys, damage, message
):
    make_shards(inputs_of("xml", tmp_path, write_dump), tmp_path / "parts", arguments, 3)
    damage(tmp_path / "parts")
    assert main(["merge", "--output", str(tmp_path / "parts/x")]) == 2
    capture = capsys.readouterr()
    assert re.search(message, capture.err)
    assert not list((tmp_path / "parts").glob("*_text_document.*"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--shard", "2/2"], "I from 0 to N - 1; got 2/2"),
        (["--shard", "half"], "got half"),
        (["--shard", "0/2", "--input", "-"], "got standard input"),
    ],
)
def test_mistakes(arguments, capsys, words, message):
    with pytest.raises(SystemExit):
        main(["--input", "d.xml", *arguments, *words])
    assert message in capsys.readouterr().err
