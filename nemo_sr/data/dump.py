# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Pages of a MediaWiki XML export, read one after the other in constant memory."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any
from urllib.parse import quote
from xml.etree.ElementTree import ParseError

import mwxml
from mwxml.element_iterator import ElementIterator
from mwxml.errors import MalformedXML

MEDIA, FILE, CATEGORY = -2, 6, 14
"""Numbers of the namespaces whose links are not text, the same on every wiki."""

_OPENERS: dict[str, Callable[..., Any]] = {".xml": open, ".bz2": bz2.open, ".gz": gzip.open}


class DumpError(ValueError):
    """The dump cannot be read: it is missing, damaged, or no MediaWiki export."""


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


class Dump:
    """An open MediaWiki export: site data at once, pages by iteration. A context manager.

    Args:
        path: File with the ending .xml, .xml.bz2 or .xml.gz.

    Attributes:
        hidden_prefixes: Lower-case prefixes of links that are not text (files, media, categories) on this wiki.

    Raises:
        DumpError: the file is missing, has another ending, or its beginning is not a MediaWiki export. Iterating raises
            it where the file turns out to be damaged or cut off.
    """

    def __init__(self, path: Path) -> None:
        if path.suffix not in _OPENERS:
            raise DumpError(
                f"the dump must be a file ending in .xml, .xml.bz2 or .xml.gz; got {path}. "
                "Unpack it, or give it the ending of its format."
            )
        if not path.is_file():
            raise DumpError(
                f"the dump must be an existing file; {path} is {'a folder' if path.is_dir() else 'not there'}. "
                "Check --input."
            )
        self.path = path
        self._raw: IO[bytes] = path.open("rb")
        try:
            self._stream: Any = self._raw if path.suffix == ".xml" else _OPENERS[path.suffix](self._raw, "rb")
            self._root = self._guard(ElementIterator.from_file, self._stream)
            if self._root.tag != "mediawiki":
                raise DumpError(
                    f"the dump must be a MediaWiki export, whose outermost element is <mediawiki>; in {path} it is "
                    f"<{self._root.tag}>. Pass a pages-articles dump."
                )
            self._dump = self._guard(mwxml.Dump.from_element, self._root)
        except BaseException:
            self._raw.close()
            raise
        site = self._dump.site_info
        self._base_url = site.base.rsplit("/", 1)[0] + "/" if site.base and "/" in site.base else ""
        local = {space.name.lower() for space in site.namespaces or () if space.id in (MEDIA, FILE, CATEGORY)}
        self.hidden_prefixes = frozenset(local | {"media", "file", "image", "category"})

    def __enter__(self) -> Dump:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._raw.close()

    def num_bytes_read(self) -> int:
        """Count the bytes of the (compressed) file that have been read, for a progress bar."""
        return self._raw.tell()

    def url(self, title: str) -> str:
        """Build the address of a page, "" if the dump does not name the wiki's."""
        return self._base_url + quote(title.replace(" ", "_"), safe="/:,()!*'@;") if self._base_url else ""

    def __iter__(self) -> Iterator[Page]:
        pages = iter(self._dump.pages)
        while (page := self._guard(self._next_page, pages)) is not None:
            yield page
            # mwxml empties what it has read but leaves it under the root: 100 bytes a page, 2 GB on a full dump.
            del self._root.element[:-1]

    @staticmethod
    def _next_page(pages: Iterator[Any]) -> Page | None:
        page = next(pages, None)
        if page is None:
            return None
        last = None
        for last in page:  # noqa: B007  a history dump holds every revision, the newest last
            pass
        text = (last.text if last is not None else None) or ""
        return Page(
            id=page.id,
            title=page.title,
            namespace=page.namespace,
            # A dump made by other tools may lack the <redirect> element.
            redirect=page.redirect is not None or text.lstrip()[:9].upper() == "#REDIRECT",
            model=(last.model if last is not None else None) or "wikitext",
            text=text,
        )

    def _guard(self, function: Any, *args: Any) -> Any:
        """Call, and turn what damaged input raises in the libraries below into a DumpError."""
        try:
            return function(*args)
        except (EOFError, gzip.BadGzipFile, lzma.LZMAError) as error:
            raise self._damaged("its compressed data ends too early or is damaged", error) from error
        except OSError as error:
            if error.errno is not None:
                raise
            raise self._damaged(f"its data is not what the ending {self.path.suffix} promises", error) from error
        except ParseError as error:
            if self._raw.tell() >= self.path.stat().st_size and "no element found" in str(error):
                raise self._damaged("the XML ends too early", error) from error
            raise self._damaged("it is not well-formed XML", error) from error
        except (MalformedXML, ValueError, TypeError, AttributeError) as error:
            raise self._damaged("its XML is not laid out as a MediaWiki export", error) from error

    def _damaged(self, what: str, error: Exception) -> DumpError:
        detail = " ".join(str(error).split())[:120]
        return DumpError(
            f"the dump must be a complete MediaWiki export; {self.path} cannot be read: {what} ({detail}). "
            "Download it again and compare its checksum with the one published beside it."
        )
