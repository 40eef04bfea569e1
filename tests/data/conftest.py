# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Small dumps, the sample corpus, and the command line, for the tests of the data room."""

import bz2
import os
import subprocess
import sys
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from nemo_sr.data.dump import parse_page, read_site
from nemo_sr.data.preprocess import main as preprocess_main
from nemo_sr.data.records import PAGE, split_pages
from nemo_sr.data.sample_corpus import write_sample_corpus
from nemo_sr.data.sources import Source

ROOT = Path(__file__).parents[2]


def dump_xml(pages):
    """Build an export of (title, text) or (title, text, namespace) or (title, text, namespace, redirect)."""
    parts = [
        '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="en"><siteinfo>'
        "<sitename>T</sitename><base>https://t.example/wiki/Main</base><namespaces>"
        '<namespace key="0" case="first-letter" /><namespace key="6" case="first-letter">Datei</namespace>'
        '<namespace key="14" case="first-letter">Kategorie</namespace></namespaces></siteinfo>'
    ]
    for number, (title, text, *rest) in enumerate(pages, start=1):
        namespace, redirect = (*rest, None)[:2] if len(rest) > 1 else (rest[0] if rest else 0, None)
        parts.append(
            f"<page><title>{escape(title)}</title><ns>{namespace}</ns><id>{number}</id>"
            + (f'<redirect title="{redirect}" />' if redirect else "")
            + f"<revision><id>{number}</id><timestamp>2026-01-01T00:00:00Z</timestamp><model>wikitext</model>"
            f"<format>text/x-wiki</format><text>{escape(text)}</text></revision></page>"
        )
    return "".join(parts) + "</mediawiki>"


@pytest.fixture(scope="session")
def dump_builder():
    """The function that builds an export."""
    return dump_xml


@pytest.fixture
def write_dump(tmp_path):
    """Write pages as a dump; returns its path."""

    def write(pages, name="dump.xml.bz2"):
        path = tmp_path / name
        data = dump_xml(pages).encode()
        path.write_bytes(bz2.compress(data) if name.endswith(".bz2") else data)
        return path

    return write


@pytest.fixture(scope="session")
def read_dump():
    """The function that reads the pages of a dump, given its path."""

    def read(path):
        source = Source(path)
        site = read_site(source)
        return [parse_page(record.data, site) for item in source.items(PAGE) for record in split_pages(item)]

    return read


@pytest.fixture(scope="session")
def run_script():
    """Run a script of the project in a process of its own."""

    def run(name, *args, timeout=120, stdin=None, **environment):
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        return subprocess.run(
            [sys.executable, str(ROOT / "scripts" / name), *map(str, args)],
            capture_output=True,
            text=True,
            stdin=stdin,
            timeout=timeout,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment},
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def sample_dump(tmp_path_factory):
    """The whole sample corpus."""
    path = tmp_path_factory.mktemp("sample") / "sample.xml.bz2"
    write_sample_corpus(path)
    return path


@pytest.fixture(scope="session")
def sample_data(sample_dump, tmp_path_factory):
    """The sample corpus, preprocessed by two workers with a vocabulary of 2048 tokens; the folder."""
    folder = tmp_path_factory.mktemp("data")
    arguments = ["--input", sample_dump, "--output", folder / "sample", "--train-tokenizer", 2048, "--workers", 2]
    assert preprocess_main([str(argument) for argument in arguments]) == 0
    return folder
