# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""MediaWiki XML exports: what they say of their wiki, and their pages.

Every page is parsed as a document of its own, without a document type. So a page that is not well-formed harms no
other, and nothing that a dump declares can make the parser expand entities.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote
from xml.etree.ElementTree import Element, ParseError, XMLPullParser, fromstring

from nemo_sr.data.records import PAGE
from nemo_sr.data.sources import Source, SourceError, damaged

MEDIA, FILE, CATEGORY = -2, 6, 14
"""Numbers of the namespaces whose links are not text, the same on every wiki."""

# Older names of the file namespace, which siteinfo leaves out but pages still use: name there -> older names.
_OLDER_FILE_NAMES = {
    "datei": ("bild",), "fil": ("bild", "bilde", "billede"), "archivo": ("imagen",), "ficheiro": ("imagem",),
    "bestand": ("afbeelding",), "plik": ("grafika",), "soubor": ("obrázek",), "tiedosto": ("kuva",),
    "файл": ("изображение", "зображення"), "ファイル": ("画像",),
}  # fmt: skip
_ENCODING = re.compile(rb"""^<\?xml[^>]*\sencoding\s*=\s*["']([^"']*)["']""")
_ID = re.compile(rb"<id>(\d+)</id>")


class PageError(ValueError):
    """A page cannot be read."""


@dataclass(frozen=True)
class Site:
    """The wiki that a dump is of.

    Attributes:
        base_url: Address that page titles are appended to, "" if unknown.
        namespaces: Name -> number.
        hidden_prefixes: Lower-case prefixes of links that are not text (files, media, categories).
    """

    base_url: str
    namespaces: dict[str, int]
    hidden_prefixes: frozenset[str]

    def url(self, title: str) -> str:
        """Build the address of a page, "" if the dump does not name the wiki's."""
        return self.base_url + quote(title.replace(" ", "_"), safe="/:,()!*'@;") if self.base_url else ""


@dataclass(frozen=True)
class Page:
    """One page of the dump, with the text of its last revision.

    Attributes:
        id: The wiki's page number.
        title: Title, with its namespace's prefix.
        namespace: 0 for articles.
        redirect: Whether the page only points to another one.
        model: Content model of the text, "wikitext" for articles.
        text: Wiki markup, "" when the page is empty or its text was deleted.
    """

    id: int
    title: str
    namespace: int
    redirect: bool
    model: str
    text: str


def read_site(source: Source) -> Site:
    """Read what stands before the first page.

    Raises:
        SourceError: the input is no MediaWiki export, or cannot be read.
    """
    header = source.head(PAGE)
    encoding = _ENCODING.match(header)
    if b"<!DOCTYPE" in header or b"<!ENTITY" in header:
        raise SourceError(
            f"the dump must be a MediaWiki export, which has no document type and no entities of its own; "
            f"{source.path} has. Pass a pages-articles dump as Wikimedia publishes it."
        )
    if encoding and encoding[1].lower() not in (b"utf-8", b"utf8"):
        raise SourceError(
            f"the dump must be in UTF-8, as every MediaWiki export is; {source.path} says "
            f"{encoding[1].decode('latin-1')}. Convert it."
        )
    parser: XMLPullParser[Any] = XMLPullParser(("start",))
    try:
        parser.feed(header)
        starts: list[Element] = [element for _, element in parser.read_events()]  # type: ignore[misc]
    except ParseError as error:
        raise damaged(source.path, "it is not well-formed XML", error) from error
    if not starts:
        raise damaged(source.path, "the XML ends too early", "it has no element")
    root = starts[0]
    if _name(root) != "mediawiki":
        raise SourceError(
            f"the dump must be a MediaWiki export, whose outermost element is <mediawiki>; in {source.path} it is "
            f"<{_name(root)}>. Pass a pages-articles dump."
        )
    if len(root) and _name(root[0]) != "siteinfo":
        raise damaged(
            source.path, "its XML is not laid out as a MediaWiki export", f"it begins with <{_name(root[0])}>"
        )
    base = next((element.text for element in starts if _name(element) == "base"), None) or ""
    spaces = [element for element in starts if _name(element) == "namespace"]
    try:
        namespaces = {space.text or "": int(space.get("key", "0")) for space in spaces}
    except ValueError as error:
        raise damaged(source.path, "its XML is not laid out as a MediaWiki export", error) from error
    local = {name.lower() for name, number in namespaces.items() if number in (MEDIA, FILE, CATEGORY)}
    older = {old for name in local for old in _OLDER_FILE_NAMES.get(name, ())}
    return Site(
        base_url=base.rsplit("/", 1)[0] + "/" if "/" in base else "",
        namespaces=namespaces,
        hidden_prefixes=frozenset(local | older | {"media", "file", "image", "category"}),
    )


def parse_page(data: bytes, site: Site) -> Page:
    """Parse a page.

    Args:
        data: From <page> to </page>.
        site: The wiki that it is from.

    Raises:
        PageError: it is not well-formed, not in UTF-8, or not laid out as a page.
    """
    try:
        page = fromstring(data)
    except ParseError as error:
        try:
            data.decode()
        except UnicodeDecodeError as wrong:
            raise PageError(f"it is not in UTF-8 (byte {wrong.start} of the page)") from error
        raise PageError(f"it is not well-formed XML ({error})") from error
    title = page.findtext("title") or ""
    space = page.findtext("ns")
    try:
        number = int(page.findtext("id") or "")
        # Exports before 0.6 have no <ns>.
        namespace = site.namespaces.get(title.partition(":")[0], 0) if space is None else int(space)
    except ValueError as error:
        raise PageError("it is not laid out as a page: id and namespace must be numbers") from error
    if not title:
        raise PageError("it is not laid out as a page: it has no title")
    revision = page.findall("revision")[-1:]  # a history dump holds every revision, the newest last
    body = revision[0].find("text") if revision else None
    if body is not None and len(body):
        raise PageError("it is not laid out as a page: its text has XML elements in it")
    text = (body.text if body is not None else None) or ""
    return Page(
        id=number,
        title=title,
        namespace=namespace,
        # A dump made by other tools may lack the <redirect> element.
        redirect=page.find("redirect") is not None or text.lstrip()[:9].upper() == "#REDIRECT",
        model=(revision[0].findtext("model") if revision else None) or "wikitext",
        text=text,
    )


def find_id(data: bytes) -> str | None:
    """Find the number of a page that cannot be parsed, in its beginning."""
    match = _ID.search(data)
    return match[1].decode() if match else None


def _name(element: Element) -> str:
    return element.tag.rpartition("}")[2]
