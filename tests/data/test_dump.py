# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Reading dumps: what a page is, what is wrong with one, and that it does not matter where a dump is cut."""

import bz2
import gzip
import io
import re
import sys
from types import SimpleNamespace

import pytest

from nemo_sr.data import sources
from nemo_sr.data.bzip2 import DamagedError, read_blocks
from nemo_sr.data.dump import Page, PageError, parse_page, read_site
from nemo_sr.data.records import PAGE, split_lines, split_pages
from nemo_sr.data.sources import STDIN, Source, SourceError, cut_sources, expand

PAGES = [("Ä & B", "text"), ("R", "#REDIRECT [[X]]", 0, "X"), ("R2", "#redirect [[X]]"), ("Talk:A", "t", 1), ("E", "")]
EXPECTED = [
    Page(1, "Ä & B", 0, False, "wikitext", "text"),
    Page(2, "R", 0, True, "wikitext", "#REDIRECT [[X]]"),
    Page(3, "R2", 0, True, "wikitext", "#redirect [[X]]"),
    Page(4, "Talk:A", 1, False, "wikitext", "t"),
    Page(5, "E", 0, False, "wikitext", ""),
]


def bz2_streams(data, size):
    """Compress as a multistream dump is: several compressed files in one."""
    return b"".join(bz2.compress(data[i : i + size]) for i in range(0, len(data), size))


PACKINGS = {
    ".xml": lambda data: data,
    ".xml.bz2": bz2.compress,
    ".multistream.xml.bz2": lambda data: bz2_streams(data, 700),
    ".xml.gz": lambda data: gzip.compress(data[:700]) + gzip.compress(data[700:]),
}


@pytest.mark.parametrize("ending", PACKINGS)
def test_pages(write_dump, read_dump, tmp_path, ending):
    path = tmp_path / ("packed" + ending)
    path.write_bytes(PACKINGS[ending](write_dump(PAGES, "dump.xml").read_bytes()))
    assert read_dump(path) == EXPECTED
    site = read_site(Source(path))
    assert site.hidden_prefixes == {"datei", "bild", "kategorie", "file", "image", "media", "category"}
    assert site.url("Ä b") == "https://t.example/wiki/%C3%84_b"


@pytest.mark.parametrize("ending", PACKINGS)
def test_standard_input(write_dump, read_dump, monkeypatch, ending):
    data = PACKINGS[ending](write_dump(PAGES, "dump.xml").read_bytes())
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(data))))
    assert read_dump(STDIN) == EXPECTED


def test_last_revision_counts(write_dump, read_dump):
    path = write_dump([("A", "old")], "dump.xml")
    xml = path.read_text()
    start, end = xml.index("<revision>"), xml.index("</page>")
    path.write_text(xml[:end] + xml[start:end].replace("old", "new") + xml[end:])
    assert [page.text for page in read_dump(path)] == ["new"]


def test_namespace_of_old_exports_is_that_of_the_title(write_dump, read_dump):
    path = write_dump([("A", "a"), ("Datei:B", "b")], "dump.xml")
    path.write_text(re.sub(r"<ns>\d+</ns>", "", path.read_text()))
    assert [page.namespace for page in read_dump(path)] == [0, 6]


@pytest.fixture
def long_dump(write_dump):
    """Pages of all lengths, some over several bzip2 blocks of 100 kB."""
    pages = [(f"P{i}", "".join(chr(97 + (i * j * j) % 26) for j in range((i * 7919) % 3000 + 1))) for i in range(60)]
    pages[30] = ("long", "x".join(str(i) for i in range(40_000)))
    return write_dump(pages, "dump.xml")


@pytest.mark.parametrize("step", [333, 5000, 25_000])
@pytest.mark.parametrize("ending", [".xml", ".xml.bz2", ".multistream.xml.bz2"])
def test_every_page_is_in_one_segment_wherever_it_is_cut(long_dump, read_dump, tmp_path, monkeypatch, ending, step):
    data = long_dump.read_bytes()
    path = tmp_path / ("packed" + ending)
    packed = {".xml": data, ".xml.bz2": bz2.compress(data, 1), ".multistream.xml.bz2": bz2_streams(data, 3000)}
    path.write_bytes(packed[ending])
    monkeypatch.setattr(sources, "_SEGMENT_SIZES", {".bz2": (step, step), "": (step, step)})
    assert len(list(Source(path).items(PAGE))) == -(-path.stat().st_size // step)
    assert read_dump(path) == read_dump(long_dump)
    for count in (2, 5):
        shards = [item for number in range(count) for item in cut_sources([Source(path)], PAGE, (number, count))]
        assert shards == list(Source(path).items(PAGE))


@pytest.mark.parametrize("piece", [1000, 50_000])
def test_streams_are_cut_between_pages(long_dump, read_dump, tmp_path, monkeypatch, piece):
    path = tmp_path / "dump.xml.gz"
    path.write_bytes(gzip.compress(long_dump.read_bytes()))
    monkeypatch.setattr(sources, "_PIECE", piece)
    monkeypatch.setattr(sources, "_READ", 777)
    items = list(Source(path).items(PAGE))
    assert len(items) > 1
    assert all(item.data.startswith(PAGE) for item in items[1:])
    assert sum(item.num_bytes for item in items) == path.stat().st_size
    assert read_dump(path) == read_dump(long_dump)


def read_own_blocks(path, size, step):
    parts = []
    for start in range(0, size, step):
        for block, is_own in read_blocks(path, start, min(start + step, size)):
            if not is_own:
                break
            parts.append(block)
    return b"".join(parts)


def test_blocks_of_any_range(long_dump, tmp_path):
    data = long_dump.read_bytes()
    path = tmp_path / "d.bz2"
    for packed in (bz2.compress(data, 1), bz2_streams(data, 5000) + bz2.compress(b"") + bz2.compress(b"x")):
        path.write_bytes(packed)
        for step in (len(packed), 333, 9999):
            assert read_own_blocks(path, len(packed), step) == bz2.decompress(packed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda packed: packed[:-1], "end too early"),
        (lambda packed: packed[:-11], "end too early"),
        (lambda packed: packed[: len(packed) // 2], "end too early"),
        (lambda packed: packed[:3], "no|early"),
        (lambda packed: b"x" + packed[1:], "does not begin as bzip2"),
        (lambda packed: packed + b"more", "no bzip2 data"),
        (lambda packed: packed + b"BZh9", "no bzip2 data"),
        (lambda packed: packed[:5000] + bytes([packed[5000] ^ 1]) + packed[5001:], "damaged|early"),
    ],
)
@pytest.mark.parametrize("step", [4000, 1 << 20])
def test_damaged_bzip2(long_dump, tmp_path, change, message, step):
    path = tmp_path / "d.bz2"
    path.write_bytes(change(bz2.compress(long_dump.read_bytes(), 1)))
    size = path.stat().st_size
    with pytest.raises(DamagedError, match=message):
        read_own_blocks(path, size, step)


@pytest.mark.parametrize("ending", PACKINGS)
@pytest.mark.parametrize("cut", ["between pages", "in a page", "in the last tag"])
def test_dumps_that_end_too_early_are_refused(write_dump, read_dump, tmp_path, ending, cut):
    data = write_dump(PAGES, "dump.xml").read_bytes()
    size = {"between pages": data.rindex(b"<page>"), "in a page": data.rindex(b"</page>"), "in the last tag": -2}[cut]
    path = tmp_path / ("packed" + ending)
    path.write_bytes(PACKINGS[ending](data[:size]))
    with pytest.raises(SourceError, match="the XML ends too early"):
        read_dump(path)


def test_dumps_one_after_the_other(write_dump, read_dump):
    path = write_dump(PAGES, "dump.xml")
    path.write_bytes(path.read_bytes() + b"\n" + path.read_bytes())
    assert read_dump(path) == EXPECTED * 2


# What a page is replaced by, and what is said of it.
BROKEN = {
    "no end": (lambda page: page.replace(b"</page>", b""), "its end is missing"),
    "no XML": (lambda page: page.replace(b"<ns>", b"<ns"), "not well-formed XML"),
    "no UTF-8": (lambda page: page.replace(b"word", b"w\xffrd"), r"not in UTF-8 \(byte \d+"),
    "control character": (lambda page: page.replace(b"word", b"w\0rd"), "not well-formed XML"),
    "no id": (lambda page: re.sub(rb"<id>.*?</id>", b"", page), "must be numbers"),
    "no title": (lambda page: re.sub(rb"<title>.*?</title>", b"", page), "no title"),
    "unknown entity": (lambda page: page.replace(b"word", b"&lol9;"), "not well-formed XML"),
    "elements in the text": (lambda page: page.replace(b"word", b"<b>word</b>"), "has XML elements in it"),
    "deeply nested": (lambda page: page.replace(b"word", b"<b>" * 10_000 + b"</b>" * 10_000), "has XML elements in it"),
    "too large": (lambda page: page.replace(b"word", b"word " * 10_000_000), "more than 8 MiB"),
    "something between": (lambda page: page + b"<pag><title>B</title></pag>", "between two pages"),
}


@pytest.mark.parametrize("ending", [".xml", ".xml.gz"])
@pytest.mark.parametrize(("change", "message"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_page_harms_no_other(write_dump, tmp_path, change, message, ending):
    data = write_dump([("A", "a"), ("B", "word"), ("C", "c")], "dump.xml").read_bytes()
    start = data.index(b"<page>", data.index(b"<page>") + 1)
    end = data.index(b"</page>", start) + len(b"</page>")
    path = tmp_path / ("broken" + ending)
    changed = data[:start] + change(data[start:end]) + data[end:]
    path.write_bytes(gzip.compress(changed) if ending == ".xml.gz" else changed)
    source = Source(path)
    site = read_site(source)
    titles, problems = [], []
    for record in (record for item in source.items(PAGE) for record in split_pages(item)):
        if record.problem:
            problems.append(record.problem)
            continue
        try:
            titles.append(parse_page(record.data, site).title)
        except PageError as error:
            problems.append(str(error))
    assert titles == (["A", "B", "C"] if message == "between two pages" else ["A", "C"])
    assert len(problems) == 1
    assert re.search(message, problems[0])


HEADERS = {
    "entity bomb": (
        b"<mediawiki",
        b'<!DOCTYPE m [<!ENTITY a "lol"><!ENTITY b "&a;&a;">]><mediawiki',
        "no document type",
    ),
    "other encoding": (b"<mediawiki", b'<?xml version="1.0" encoding="latin-1"?><mediawiki', "says latin-1"),
    "namespace that is no number": (b'key="6"', b'key="six"', "not laid out"),
}


@pytest.mark.parametrize(("old", "new", "message"), HEADERS.values(), ids=HEADERS.keys())
def test_headers_that_are_refused(write_dump, read_dump, old, new, message):
    path = write_dump(PAGES, "dump.xml")
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    with pytest.raises(SourceError, match=message):
        read_dump(path)


def test_a_compression_bomb_is_refused(write_dump, read_dump):
    """150 MB of small pages in 5 kB."""
    path = write_dump([("A", "a" * 500_000)], "dump.xml.bz2")
    data = bz2.decompress(path.read_bytes())
    start, end = data.index(PAGE), data.rindex(b"</mediawiki>")
    path.write_bytes(bz2.compress(data[:start]) + bz2.compress(data[start:end]) * 300 + bz2.compress(data[end:]))
    with pytest.raises(SourceError, match="expand to more than 128 MiB"):
        read_dump(path)


LINES = [b"one", b"", b"three " * 500, b"4"]


@pytest.mark.parametrize("end", [b"\n", b""])
@pytest.mark.parametrize("step", [1, 7, 1000, 10_000])
@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.bz2", ".jsonl.gz"])
def test_every_line_is_in_one_item_wherever_it_is_cut(tmp_path, monkeypatch, ending, step, end):
    path = tmp_path / ("lines" + ending)
    data = b"\n".join(LINES) + end
    pack = {".jsonl": bytes, ".jsonl.bz2": lambda data: bz2_streams(data, 100), ".jsonl.gz": gzip.compress}[ending]
    path.write_bytes(pack(data))
    monkeypatch.setattr(sources, "_SEGMENT_SIZES", {".bz2": (step, step), "": (step, step)})
    monkeypatch.setattr(sources, "_PIECE", step)
    monkeypatch.setattr(sources, "_READ", 50)
    items = Source(path).items(b"\n")
    assert [record.data for item in items for record in split_lines(item)] == LINES


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz"])
def test_a_line_that_is_too_large_harms_no_other(tmp_path, ending):
    path = tmp_path / ("lines" + ending)
    data = b"one\n" + b"x" * (sources.MAX_RECORD + 2_000_000) + b"\nthree\n"
    path.write_bytes(gzip.compress(data) if ending.endswith("gz") else data)
    records = [record for item in Source(path).items(b"\n") for record in split_lines(item)]
    assert [(record.data[:5], record.problem) for record in records] == [
        (b"one", ""), (b"xxxxx", "it has more than 8 MiB"), (b"three", "")
    ]  # fmt: skip


def test_paths_and_patterns(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("d10.xml", "d9.xml", "e[1].xml"):
        (tmp_path / name).touch()
    assert [str(path) for path in expand(["e[1].xml", "d*.xml"])] == ["e[1].xml", "d9.xml", "d10.xml"]
    for patterns, message in (
        (["x*"], "x\\* matches none"),
        (["d9.xml", "d*"], "d9.xml is there twice"),
        (["-", "d9.xml"], "only input"),
    ):
        with pytest.raises(SourceError, match=message):
            expand(patterns)
