# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The documents: links lead somewhere, on GitHub and in the site; what is run prints what they show."""

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from checkout import copy_checkout
from documented import DOCUMENTS, ROOT, explain_difference, read_all_blocks, read_blocks

BLOCKS = read_all_blocks()


def relative_links(document):
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match("https?:", link)]


def github_anchors(document):
    """The anchors that GitHub gives the headings of a file."""
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    titles = [re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", title) for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere_and_nothing_is_left_to_fill_in(document):
    text = document.read_text(encoding="utf-8")
    assert "@@" not in text
    assert "TODO" not in text
    broken = []
    for link in relative_links(document):
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        if not target.exists() or (anchor and anchor not in github_anchors(target)):
            broken.append(link)
    assert broken == []


class Fetched(HTMLParser):
    """Collects what a browser fetches for a page."""

    def __init__(self):
        super().__init__()
        self.addresses = set()

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if tag in ("script", "img", "iframe"):
            self.addresses.add(attributes.get("src") or "")
        if tag == "link" and attributes.get("rel") in ("stylesheet", "icon", "preconnect", "preload"):
            self.addresses.add(attributes["href"])


def test_the_site_has_every_page_in_its_navigation_and_fetches_nothing_from_elsewhere(tmp_path):
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    home = (tmp_path / "index.html").read_text(encoding="utf-8")
    pages = [page.name for page in (ROOT / "docs").glob("*.md")]
    assert [page for page in pages if f'href="{page.removesuffix(".md")}.html"' not in home] == []
    # Docstrings are shown as Markdown, which has no such roles.
    assert re.findall(r":(?:class|func|meth|mod):", (tmp_path / "api.html").read_text(encoding="utf-8")) == []
    for page in tmp_path.rglob("*.html"):
        fetched = Fetched()
        fetched.feed(page.read_text(encoding="utf-8"))
        assert [address for address in fetched.addresses if re.match("(https?:)?//", address)] == []


def test_the_tutorial_is_the_program_that_it_says():
    program = (ROOT / "examples/tutorial.py").read_text(encoding="utf-8")
    cells = [cell.strip() for cell in program.split("# %%\n")[1:]]
    blocks = read_blocks(ROOT / "docs/tutorial.md")
    assert [block.text.strip() for block in blocks if block.language == "python"] == cells


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the checkout to run in, set up as `make setup` would have."""
    folder = tmp_path_factory.mktemp("checkout")
    copy_checkout(folder)
    for kernel in (ROOT / "nemo_sr/kernels").glob("_cpu*.so"):
        shutil.copy(kernel, folder / "nemo_sr/kernels")
    (folder / ".venv").mkdir()
    for entry in Path(sys.prefix).iterdir():
        if entry.name != ".ready":
            (folder / ".venv" / entry.name).symlink_to(entry)
    (folder / ".venv/.ready").touch()
    return folder


def run_blocks(document, mark, folder):
    """Run the blocks of a document that have a mark, in order, in a copy of the checkout; return what they print."""
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(folder),
        "OMP_NUM_THREADS": "1",
    }
    printed = ""
    for block in read_blocks(document):
        if block.mark == mark and block.language == "python":
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(compile(block.text, str(block), "exec"), {"__name__": "__main__"})  # saves importing torch again
            printed += output.getvalue()
        elif block.mark == mark:
            words = ["bash", "-euo", "pipefail", "-c", block.text]
            done = subprocess.run(words, capture_output=True, text=True, cwd=folder, env=environment, check=False)
            assert done.returncode == 0, f"{block}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
            printed += done.stdout
    return printed


def documents_with(mark):
    documents = dict.fromkeys(block.document for block in BLOCKS if block.mark == mark)
    return [pytest.param(document, id=document.name) for document in documents]


def check_output(document, kind, folder):
    printed = run_blocks(document, f"run{kind}", folder)
    shown = "".join(block.text for block in read_blocks(document) if block.mark == f"prints{kind}")
    assert not shown or explain_difference(printed, shown, is_excerpt=bool(kind)) is None


@pytest.mark.parametrize("document", documents_with("run"))
def test_what_is_run_prints_what_is_shown(document, checkout):
    check_output(document, "", checkout)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("document", documents_with("run slow"))
def test_what_takes_minutes_prints_what_is_shown(document, checkout):
    check_output(document, " slow", checkout)


@pytest.mark.parametrize(
    ("printed", "agrees"),
    [
        ("a\nstep 1  loss 2.05  3.4 s\nskipped\nend", True),
        ("a\nstep 1  loss 2.25  3.4 s\nend", False),
        ("a\nstep 2  loss 2.05  3.4 s\nend", False),
        ("a\nstep 1  loss 2.05  3.4 MiB\nend", False),
        ("a\nstep 1  loss 2.05  3.4 s\n", False),
    ],
)
def test_output_is_compared_but_for_times_and_the_last_digits(printed, agrees):
    shown = "a\nstep 1  loss 2.00  99 s\n...\nend\n"
    assert (explain_difference(printed, shown) is None) is agrees
    assert (explain_difference(f"make\n{printed}\nmore", shown, is_excerpt=True) is None) is agrees
    assert explain_difference(f"make\n{printed}", shown) is not None


def test_the_drop_in_example_takes_its_steps():
    blocks = read_blocks(ROOT / "README.md")
    example = next(block for block in blocks if block.language == "python" and "AdamWSR(" in block.text)
    names = {}
    exec(compile(example.text, str(example), "exec"), names)
    optimizer = names["optimizer"]
    assert optimizer.state_dict()["param_groups"][0]["param_names"] == ["weight", "bias"]
    assert optimizer.param_groups[0]["step"] == 10
