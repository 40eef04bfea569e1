# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""A sample corpus: a MediaWiki export made of the Python documentation on this machine.

It has what a real dump has (redirects, templates, references, tables, files, links, entities, empty pages, other
namespaces), so that everything from the dump to the trained model can be run and tested without downloading anything.
Each article also knows the plain text that a reader would see, which is what ``markup.clean`` must return.
"""

from __future__ import annotations

import argparse
import bz2
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from xml.sax.saxutils import escape

from nemo_sr.data.library_docs import read_library
from nemo_sr.data.progress import complain, say
from nemo_sr.data.wiki_article import write_article

_NAMESPACES = {
    -2: "Media", -1: "Special", 0: "", 1: "Talk", 2: "User", 3: "User talk", 4: "Project", 6: "File",
    10: "Template", 14: "Category",
}  # fmt: skip
_EMPTY_TEXTS = ("", "{{Empty page|{{CURRENTYEAR}}}}", "<!-- nothing yet -->", "[[Category:Stubs]]\n__NOTOC__")


@dataclass(frozen=True)
class SamplePage:
    """One page of the sample corpus.

    Attributes:
        title: With its namespace's prefix.
        namespace: Number of the namespace.
        wikitext: Its markup.
        text: What a reader sees of an article, "" for pages that are none.
        redirect: Title that it points to, or None.
    """

    title: str
    namespace: int
    wikitext: str
    text: str = ""
    redirect: str | None = None


def sample_pages(*, seed: int = 0) -> Iterator[SamplePage]:
    """Yield the pages of the corpus; the same ones for the same Python and seed.

    Args:
        seed: Decides their order and which ornaments each gets.
    """
    rng = Random(seed)
    entries = [entry for entry in read_library() if entry.doc or any(doc for _, _, doc in entry.members)]
    titles = {entry.name: entry.name.replace("_", " ") for entry in entries}
    rng.shuffle(entries)
    taken = set(titles.values())
    yield from _framework()
    for number, entry in enumerate(entries):
        title = titles[entry.name]
        wikitext, text = write_article(entry, titles, rng)
        yield SamplePage(title, 0, wikitext, text)
        short = title.rpartition(".")[2]
        if entry.kind == "class" and short not in taken:
            taken.add(short)
            yield SamplePage(short, 0, f"#REDIRECT [[{title}]]\n\n{{{{R from short name}}}}", redirect=title)
        if rng.random() < 0.1:
            yield SamplePage(f"Talk:{title}", 1, f"{{{{WikiProject Python}}}}\n== Style ==\nIs ''{title}'' clear? ~~~~")
        if number % 100 == 50:
            wikitext = _EMPTY_TEXTS[number // 100 % len(_EMPTY_TEXTS)]
            yield SamplePage(f"Empty page {number // 100 + 1}", 0, wikitext)


def _framework() -> Iterator[SamplePage]:
    """Yield the pages that articles refer to."""
    for name in ("Infobox", "Cite web", "Reflist", "Version", "R from short name"):
        yield SamplePage(
            f"Template:{name}", 10, f"<includeonly>{{{{{{1|{name}}}}}}}</includeonly><noinclude>Doc</noinclude>"
        )
    for name in ("Modules", "Classes", "Topics"):
        yield SamplePage(f"Category:{name}", 14, "[[Category:Python]]")
    yield SamplePage("Project:About", 4, "A sample corpus made from the documentation of Python.")


def write_sample_corpus(output: Path, *, megabytes: float | None = None, seed: int = 0) -> dict[str, int]:
    """Write the corpus as a compressed export, completely or not at all.

    Args:
        output: File ending in .xml.bz2.
        megabytes: Size of the XML at which to stop, or None for all the documentation there is, about 6 MB.
        seed: As for ``sample_pages``.

    Returns:
        Counts: "pages", "articles" (with text), "bytes" of XML.

    Raises:
        OSError: the file cannot be written.
    """
    counts = {"pages": 0, "articles": 0, "bytes": 0}
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_name(f".{output.name}.partial-{os.getpid()}")
    try:
        with bz2.open(partial, "wt", encoding="utf-8") as file:
            counts["bytes"] += file.write(_header())
            for number, page in enumerate(sample_pages(seed=seed), start=1):
                counts["pages"] += 1
                counts["articles"] += bool(page.text)
                xml = _page_xml(page, number)
                file.write(xml)
                counts["bytes"] += len(xml.encode())
                if megabytes is not None and counts["bytes"] >= megabytes * 1e6:
                    break
            counts["bytes"] += file.write("</mediawiki>\n")
        os.replace(partial, output)
    finally:
        partial.unlink(missing_ok=True)
    return counts


def _header() -> str:
    schema = "http://www.mediawiki.org/xml/export-0.11/"
    spaces = "".join(
        f'      <namespace key="{key}" case="case-sensitive">{name}</namespace>\n' for key, name in _NAMESPACES.items()
    )
    return (
        f'<mediawiki xmlns="{schema}" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" '
        f'xsi:schemaLocation="{schema} http://www.mediawiki.org/xml/export-0.11.xsd" version="0.11" xml:lang="en">\n'
        "  <siteinfo>\n    <sitename>Python sample</sitename>\n    <dbname>pythonsample</dbname>\n"
        "    <base>https://wiki.example.org/wiki/Main_Page</base>\n    <generator>nemo_sr sample corpus</generator>\n"
        f"    <case>case-sensitive</case>\n    <namespaces>\n{spaces}    </namespaces>\n  </siteinfo>\n"
    )


def _page_xml(page: SamplePage, number: int) -> str:
    data = page.wikitext.encode()
    sha1 = _base36(int.from_bytes(hashlib.sha1(data).digest(), "big")).rjust(31, "0")
    redirect = f'    <redirect title="{escape(page.redirect, {chr(34): "&quot;"})}" />\n' if page.redirect else ""
    return (
        f"  <page>\n    <title>{escape(page.title)}</title>\n    <ns>{page.namespace}</ns>\n    <id>{number}</id>\n"
        f"{redirect}    <revision>\n      <id>{1000 + number}</id>\n      <timestamp>2026-01-01T00:00:00Z</timestamp>\n"
        "      <contributor>\n        <username>Generator</username>\n        <id>1</id>\n      </contributor>\n"
        f"      <comment>made from the documentation</comment>\n      <origin>{1000 + number}</origin>\n"
        "      <model>wikitext</model>\n      <format>text/x-wiki</format>\n"
        f'      <text bytes="{len(data)}" sha1="{sha1}" xml:space="preserve">{escape(page.wikitext)}</text>\n'
        f"      <sha1>{sha1}</sha1>\n    </revision>\n  </page>\n"
    )


def _base36(number: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Make a MediaWiki export from the documentation of this Python.")
    parser.add_argument("--output", type=Path, required=True, metavar="DUMP.xml.bz2", help="file to write")
    parser.add_argument("--size-mb", type=float, metavar="N", help="stop at N MB of XML (default: all, about 6)")
    parser.add_argument("--seed", type=int, default=0, help="order and ornaments (default: %(default)s)")
    given = parser.parse_args(argv)
    if not given.output.name.endswith(".xml.bz2"):
        parser.error(f"--output must end in .xml.bz2; got {given.output}. Add the ending.")
    if given.size_mb is not None and not given.size_mb > 0:
        parser.error(f"--size-mb must be above 0; got {given.size_mb}. Leave it out for all there is.")
    try:
        counts = write_sample_corpus(given.output, megabytes=given.size_mb, seed=given.seed)
    except OSError as error:
        complain(f"--output must be writable; {given.output}: {error.strerror}. Change it.")
        return 1
    except RuntimeError as error:
        complain(str(error))
        return 1
    say(
        f"{given.output}: {counts['pages']} pages, {counts['articles']} of them articles with text, "
        f"{counts['bytes'] / 1e6:.1f} MB of XML"
    )
    if given.size_mb is not None and counts["bytes"] < given.size_mb * 1e6:
        say(f"this Python has no more documentation than that; --size-mb {given.size_mb:g} was not reached")
    return 0
