# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The sample corpus: it has what real dumps have, and cleaning it gives exactly the text that was written into it."""

from collections import Counter

import pytest

from nemo_sr.data.markup import clean
from nemo_sr.data.sample_corpus import sample_pages, write_sample_corpus

FEATURES = (
    "{{Infobox", "{{Plainlist|\n* {{small", "<ref name=", "</ref>", "\" />", "{{Reflist", "<references />", "{|",
    "[[File:", "[[Category:", "[[fr:", "#Use|", "[https://", "&nbsp;", "&mdash;", "&#32;", "&lt;", "&amp;", "<!--",
    "'''", "'''''",
    "== ", "=== ", "<nowiki>", "<nowiki />", "<syntaxhighlight", "<code>", "<small>", "<span", "\n* ", "__NOTOC__",
)  # fmt: skip


@pytest.fixture(scope="module")
def pages():
    return list(sample_pages())


def test_cleaning_gives_the_text_that_was_written(pages):
    articles = [page for page in pages if page.namespace == 0 and page.redirect is None]
    assert len(articles) > 1000
    assert [page.title for page in articles if clean(page.wikitext) != page.text] == []
    assert any(page.text == "" for page in articles)
    assert max(len(page.text) for page in articles) > 20_000


@pytest.mark.parametrize("feature", FEATURES)
def test_markup_of_real_dumps_occurs(pages, feature):
    assert sum(feature in page.wikitext for page in pages if page.namespace == 0 and page.redirect is None) >= 10


def test_kinds_of_pages(pages):
    namespaces = Counter(page.namespace for page in pages)
    assert namespaces.keys() == {0, 1, 4, 10, 14}
    titles = [page.title for page in pages]
    assert len(titles) == len(set(titles))
    assert sum(page.redirect is not None for page in pages) > 500
    assert {page.redirect for page in pages if page.redirect} <= set(titles)


def test_dump_holds_the_pages(pages, sample_dump, read_dump):
    read = [(page.title, page.namespace, page.text, page.redirect) for page in read_dump(sample_dump)]
    assert read == [(page.title, page.namespace, page.wikitext, page.redirect is not None) for page in pages]


def test_same_python_and_seed_give_the_same_bytes(run_script, sample_dump, tmp_path):
    again = tmp_path / "again.xml.bz2"
    result = run_script("make_sample_corpus.py", "--output", again, PYTHONHASHSEED="12345")
    assert (result.returncode, result.stderr) == (0, "")
    assert again.read_bytes() == sample_dump.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == [again.name]


def test_size_and_seed(tmp_path, read_dump):
    sizes = {}
    for seed in (0, 1):
        counts = write_sample_corpus(tmp_path / f"{seed}.xml.bz2", megabytes=0.5, seed=seed)
        assert 500_000 <= counts["bytes"] < 1_000_000
        sizes[seed] = [page.title for page in read_dump(tmp_path / f"{seed}.xml.bz2")]
        assert len(sizes[seed]) == counts["pages"]
    assert sizes[0] != sizes[1]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--output", "x.xml"], 2, "must end in .xml.bz2; got x.xml"),
        (["--output", "x.xml.bz2", "--size-mb", "0"], 2, "must be above 0; got 0"),
        (["--output", "/dev/null/x.xml.bz2", "--size-mb", "0.1"], 1, "must be writable; /dev/null/x.xml.bz2"),
    ],
)
def test_mistakes(run_script, arguments, code, message):
    result = run_script("make_sample_corpus.py", *arguments)
    assert result.returncode == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr
