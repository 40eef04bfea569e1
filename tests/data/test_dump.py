# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Reading dumps: what a page is, and what is no dump."""

import bz2
import gzip

import pytest

from nemo_sr.data.dump import Dump, DumpError, Page

PAGES = [("Ä & B", "text"), ("R", "#REDIRECT [[X]]", 0, "X"), ("R2", "#redirect [[X]]"), ("Talk:A", "t", 1), ("E", "")]


@pytest.mark.parametrize("ending", [".xml", ".xml.bz2", ".xml.gz"])
def test_pages(write_dump, tmp_path, ending):
    path = write_dump(PAGES, "dump.xml")
    if ending != ".xml":
        compress = bz2.compress if ending.endswith("bz2") else gzip.compress
        path, data = tmp_path / ("dump" + ending), path.read_bytes()
        # A multistream dump is several compressed files in one.
        path.write_bytes(compress(data[:700]) + compress(data[700:]))
    with Dump(path) as dump:
        assert list(dump) == [
            Page(1, "Ä & B", 0, False, "wikitext", "text"),
            Page(2, "R", 0, True, "wikitext", "#REDIRECT [[X]]"),
            Page(3, "R2", 0, True, "wikitext", "#redirect [[X]]"),
            Page(4, "Talk:A", 1, False, "wikitext", "t"),
            Page(5, "E", 0, False, "wikitext", ""),
        ]
        assert dump.hidden_prefixes == {"datei", "kategorie", "file", "image", "media", "category"}
        assert dump.url("Ä b") == "https://t.example/wiki/%C3%84_b"


def test_last_revision_counts(tmp_path, write_dump):
    path = write_dump([("A", "old")], "dump.xml")
    xml = path.read_text()
    start, end = xml.index("<revision>"), xml.index("</page>")
    path.write_text(xml[:end] + xml[start:end].replace("old", "new") + xml[end:])
    with Dump(path) as dump:
        assert [page.text for page in dump] == ["new"]


def test_pages_that_were_read_are_freed(write_dump):
    # The parser reads 64 KiB ahead; beyond that nothing may pile up.
    with Dump(write_dump([(f"P{i}", "x" * 30_000) for i in range(50)])) as dump:
        assert max(len(dump._root.element) for _ in dump) <= 5


def test_data_cut_between_pages_are_refused(write_dump):
    path = write_dump(PAGES, "dump.xml")
    data = path.read_bytes()
    path.write_bytes(data[: data.rindex(b"<page>")])
    with Dump(path) as dump, pytest.raises(DumpError, match="the XML ends too early"):
        list(dump)
