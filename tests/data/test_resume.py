# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""A run that was ended anywhere goes on from what is finished, and ends with the bytes of one that was not."""

import json
import os

import pytest

from nemo_sr.data import journal, sources, staging
from nemo_sr.data.journal import Journal, Stage
from nemo_sr.data.preprocess import main

TEXTS = [f"Article {number} says that {number * number} is a square. " * (number % 7 + 1) for number in range(40)]


class KilledError(RuntimeError):
    pass


@pytest.fixture
def small_items(monkeypatch):
    monkeypatch.setattr(sources, "_SEGMENT_SIZES", {".bz2": (400, 400), "": (2000, 2000)})
    monkeypatch.setattr(journal, "_SECONDS_BETWEEN_ENTRIES", 0.0)


def outputs(folder):
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    report = json.loads(files.pop("report.json"))
    del report["seconds"]
    return files, report


def count_items(patch, fail_at=None):
    """Count the items that stages add; fail after some, as if the process had been ended there."""
    calls = []
    add = Stage.add

    def counted(self, *args):
        add(self, *args)
        calls.append(self._name)
        if fail_at is not None and len(calls) == fail_at:
            raise KilledError

    patch.setattr(Stage, "add", counted)
    return calls


@pytest.mark.parametrize("name", ["dump.xml", "dump.xml.bz2"])
def test_killed_runs_go_on(write_dump, tmp_path, small_items, monkeypatch, name):
    dump = write_dump([(f"A{number}", text) for number, text in enumerate(TEXTS)], name)
    arguments = ["--input", str(dump), "--train-tokenizer", "300", "--workers", "1", "--output"]
    with monkeypatch.context() as patch:
        calls = count_items(patch)
        assert main([*arguments, str(tmp_path / "whole/x")]) == 0
        total = len(calls)
    assert calls.count("articles") >= 3
    assert calls.count("tokens") >= 3
    for _ in range(total):
        with monkeypatch.context() as patch:
            calls = count_items(patch, fail_at=1)
            assert main([*arguments, str(tmp_path / "killed/x")]) == 1
            assert [path.name for path in (tmp_path / "killed").iterdir()] == [staging._FOLDER]
    with monkeypatch.context() as patch:
        calls = count_items(patch)
        assert main([*arguments, str(tmp_path / "killed/x")]) == 0
        assert calls == []  # no item was made twice
    assert outputs(tmp_path / "killed") == outputs(tmp_path / "whole")


def test_what_was_written_after_the_last_entry_is_made_again(tmp_path):
    source = {"a": 1}
    stage = Stage(Journal(tmp_path, source), "s", [tmp_path / "f"]).__enter__()
    stage.add([b"one"], {"n": 1}, [])
    stage._note()
    stage.add([b"two"], {"n": 1}, [])
    stage.__exit__(KilledError, KilledError(), None)
    assert (tmp_path / "f").read_bytes() == b"onetwo"
    with Stage(Journal(tmp_path, source), "s", [tmp_path / "f"]) as stage:
        assert (stage.num_items, stage.counts["n"], stage.is_done) == (1, 1, False)
        stage.add([b"2"], {"n": 1}, [])
    assert (tmp_path / "f").read_bytes() == b"one2"
    assert Stage(Journal(tmp_path, source), "s", [tmp_path / "f"]).is_done
    (tmp_path / "f").write_bytes(b"o")  # shorter than noted: begin anew
    assert Stage(Journal(tmp_path, source), "s", [tmp_path / "f"]).num_items == 0


@pytest.mark.parametrize("source", [{"a": 2}, None])
def test_what_a_run_with_other_inputs_left_is_removed(tmp_path, source):
    with Stage(Journal(tmp_path, {"a": 1}), "s", [tmp_path / "f"]) as stage:
        stage.add([b"one"], {}, [])
    (tmp_path / "previous").mkdir()
    assert Journal(tmp_path, source)["s"] == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("old", ["nothing", "old outputs"])
def test_kill_while_publishing(write_dump, tmp_path, old):
    """Kill -9 at each rename: no run sees half of the outputs as whole, and the next one finishes."""
    for number in range(1, 14):
        out = tmp_path / str(number)
        command = ["--train-tokenizer", "258", "--workers", "1", "--output", str(out / "x")]
        if old == "old outputs":
            assert main(["--input", str(write_dump([("A", "old")], "old.xml")), *command]) == 0
        command = ["--input", str(write_dump([("A", "new text")])), *command]
        if (child := os.fork()) == 0:
            replace = os.replace
            left = [number]

            def replace_or_die(source, target, left=left, replace=replace, out=out):
                if "previous" in str(target) or os.path.dirname(target) == str(out):
                    left[0] -= 1
                    if left[0] == 0:
                        os._exit(9)
                replace(source, target)

            staging.os.replace = replace_or_die
            os._exit(main(command))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 0:
            break
        assert code == 9
        assert not ((out / "x_text_document.idx").exists() and b"new" in _read(out / "train_data.jsonl"))
        assert main(command) == 0
        files, _ = outputs(out)
        assert b"new text" in files["train_data.jsonl"]
        assert staging._FOLDER not in files
    assert number == {"nothing": 7, "old outputs": 13}[old]  # every rename was reached


def _read(path):
    return path.read_bytes() if path.exists() else b""
