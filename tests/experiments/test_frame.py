# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The frame of the experiments: bit-equal tables, kept parts, provenance, verdicts."""

import csv
import re
import socket
import subprocess
import sys

import pytest
import torch

from experiments.experiment_parts import experiment
from nemo_sr.experiments import Table
from nemo_sr.experiments.catalogue import experiments
from nemo_sr.experiments.frame import command, sources
from nemo_sr.experiments.frame.command import choose, run
from nemo_sr.experiments.frame.documents import BEGIN, END, require_pages
from nemo_sr.experiments.frame.provenance import ranges


def computed(marks):
    return marks.read_text().split() if marks.exists() else []


def contents(folder, *endings):
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.suffix in endings}


def test_the_same_seeds_give_the_same_files_to_the_bit(tmp_path):
    for name in ("one", "other"):
        run(experiment(tmp_path / "marks"), tmp_path / name, quick=False)
    files = [contents(tmp_path / name / "small", ".csv", ".svg", ".png", ".md") for name in ("one", "other")]
    for kind in files:
        del kind["timings.csv"]
    assert len(files[0]) == 7
    assert files[0] == files[1]
    assert computed(tmp_path / "marks") == list("01230123")


def test_a_run_that_was_stopped_goes_on_where_it_was_and_repeats_nothing(tmp_path):
    marks = tmp_path / "marks"
    with pytest.raises(RuntimeError, match="stopped"):
        run(experiment(marks, fails_at=2), tmp_path, quick=False)
    run(experiment(marks), tmp_path, quick=False)
    assert computed(marks) == list("0123")
    before = contents(tmp_path / "small", ".csv")
    run(experiment(marks), tmp_path, quick=False)
    assert computed(marks) == list("0123")
    assert contents(tmp_path / "small", ".csv") == before
    run(experiment(marks), tmp_path, quick=True)
    assert computed(marks) == list("0123")


@pytest.mark.parametrize(
    ("change", "again"), [("experiment_parts", True), ("nemo_sr.noise", True), ("nemo_sr.update", False)]
)
def test_a_part_is_computed_again_when_a_source_that_it_imports_changes(tmp_path, monkeypatch, change, again):
    marks = tmp_path / "marks"
    run(experiment(marks), tmp_path, quick=True)
    read = sources._imported

    def changed(module):
        files = read(module)
        other = tmp_path / "other.py"
        other.write_text("changed")
        return {name: other if name.endswith(change) else file for name, file in files.items()}

    monkeypatch.setattr(sources, "_imported", changed)
    sources.code_version.cache_clear()
    run(experiment(marks), tmp_path, quick=True)
    sources.code_version.cache_clear()
    assert computed(marks) == list("0101" if again else "01")


def test_imports_are_followed_but_the_frame_is_no_source():
    files = sources._imported("nemo_sr.experiments.theory.rounding_moments")
    assert {"nemo_sr.experiments.theory.rounding", "nemo_sr.noise", "nemo_sr.rounding"} <= files.keys()
    assert not [name for name in files if "frame" in name or name.endswith("experiments")]


def test_another_torch_or_processor_computes_again(tmp_path, monkeypatch):
    marks = tmp_path / "marks"
    run(experiment(marks), tmp_path, quick=True)
    monkeypatch.setattr(torch, "__version__", "0.0")
    run(experiment(marks), tmp_path, quick=True)
    assert computed(marks) == list("0101")


def test_every_page_and_figure_says_from_what_it_was_made_and_not_where(tmp_path):
    run(experiment(tmp_path / "marks"), tmp_path, quick=True)
    folder = tmp_path / "small"
    for name in ("index.md", "section.html", "squares.svg"):
        text = (folder / name).read_text()
        assert "python -m nemo_sr.experiments small --quick" in text
        assert "seeds 0-1" in text
        assert f"torch {torch.__version__}" in text
    for file in folder.glob("*.*"):
        text = file.read_text(errors="replace")
        if file.suffix in (".md", ".svg", ".csv"):
            assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", text)
        if file.name != "timings.csv":  # the settings here are a path
            assert str(tmp_path) not in text


@pytest.mark.parametrize(
    ("passed", "required", "status", "verdict"),
    [(True, True, 0, "pass"), (False, True, 1, "FAIL"), (True, False, 0, "holds"), (False, False, 0, "does not hold")],
)
def test_a_required_check_that_fails_is_the_exit_status(tmp_path, monkeypatch, passed, required, status, verdict):
    small = experiment(tmp_path / "marks", passed=passed, required=required)
    monkeypatch.setattr(command, "experiments", lambda: {"small": small})
    assert command.main(["--quick", "--output", str(tmp_path)]) == status
    rows = list(csv.DictReader((tmp_path / "small" / "checks.csv").open()))
    assert rows[0]["verdict"] == verdict
    assert float(rows[0]["measured"]) == 1 / 3
    html = (tmp_path / "index.html").read_text()
    assert "<img" in html
    assert "http" not in html  # it opens without a network
    assert "](small/index.md)" in (tmp_path / "index.md").read_text()


def test_results_go_between_the_marks_of_their_page(tmp_path, monkeypatch, capsys):
    small = experiment(tmp_path / "marks")
    monkeypatch.setattr(command, "experiments", lambda: {"small": small})
    page = tmp_path / "theory.md"
    arguments = ["theory", "--quick", "--output", str(tmp_path / "reports"), "--docs", str(tmp_path)]
    with pytest.raises(SystemExit):
        command.main(arguments)
    assert "theory.md must have the lines <!-- made by" in capsys.readouterr().err
    assert computed(tmp_path / "marks") == []
    page.write_text(f"# Before\n\n{BEGIN.format(page='theory')}\nstale\n{END}\n\nafter\n")
    for _ in range(2):
        assert command.main(arguments) == 0
    text = page.read_text()
    assert text.startswith("# Before\n")
    assert text.endswith("<!-- end -->\n\nafter\n")
    assert "stale" not in text
    assert text.count("## A small one") == 1
    assert "| A small one | 1 of 1 | - |" in text
    assert "| one third | 0.3333 | 0.3333 | - | pass |" in text
    assert (tmp_path / "figures" / "small-squares.svg").exists()
    with pytest.raises(ValueError, match="needs all experiments of page theory; toy, rounding_moments, "):
        require_pages([small], [small, *experiments().values()], tmp_path)


def test_a_row_of_the_wrong_length_and_an_unknown_name_are_errors():
    with pytest.raises(ValueError, match="must have 2 cells"):
        Table("t", "T", ["a", "b"], [[1]])
    with pytest.raises(ValueError, match="NAME must be one of toy, rounding_moments"):
        choose(["rounding"], experiments())
    assert [one.page for one in choose(["theory"], experiments())].count("theory") >= 1
    with pytest.raises(ValueError, match="beside the package"):
        sources.code_version("nemo_sr.noise", ("nothing_here",))


def test_seeds_are_written_as_ranges():
    assert ranges([3, 1, 2, 9]) == "1-3, 9"
    assert ranges([]) == "none"


def test_the_package_lists_its_experiments_without_megatron_and_nemo():
    code = "import sys; from nemo_sr.experiments.catalogue import experiments; experiments(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"megatron", "nemo", "lightning", "matplotlib", "nemo_sr.training"} & set(done.stdout.split())
