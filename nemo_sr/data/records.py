# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Records of an item, complete or said to be broken: pages of a MediaWiki export, lines of JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nemo_sr.data.sources import HEAD, MAX_RECORD, Item, damaged

PAGE = b"<page>"
_PAGE_END = b"</page>"
_DUMP_END = b"</mediawiki>"
_LINE_END = b"\n"
_TOO_LARGE = f"it has more than {MAX_RECORD >> 20} MiB"


@dataclass(frozen=True)
class Record:
    """A record, or why it cannot be read.

    Attributes:
        data: Its bytes; of a broken one, its beginning.
        problem: What is wrong with it, "" if nothing is.
    """

    data: bytes
    problem: str = ""


class _Feed:
    """Data of an item as they come: its own first, then those behind it."""

    def __init__(self, item: Item) -> None:
        self._chunks = item.chunks()
        self.data = b""
        self.at = 0  # what is before has been dealt with
        self.end_of_own = 0

    @property
    def is_own(self) -> bool:
        """Whether the item's own data go on."""
        return self.at < self.end_of_own

    def find(self, what: bytes, behind: int = 0) -> int:
        """Return where something begins, from ``behind`` bytes after the place reached, or -1."""
        return self.data.find(what, self.at + behind)

    def grow(self) -> bool:
        """Take one chunk more, and forget what has been dealt with; return whether there was one."""
        chunk = next(self._chunks, None)
        if chunk is None:
            return False
        self.data = self.data[self.at :] + chunk[0]
        self.end_of_own = len(self.data) if chunk[1] else self.end_of_own - self.at
        self.at = 0
        return True

    def skip_all_but(self, count: int) -> None:
        """Go on to the last bytes of the data."""
        self.at = max(self.at, len(self.data) - count)


def split_pages(item: Item) -> Iterator[Record]:
    """Yield the pages that begin in an item, each from <page> to </page>; also what is not a page but should be.

    Raises:
        SourceError: the data are damaged, or the input ends before </mediawiki>.
    """
    feed = _Feed(item)
    while (at := feed.find(PAGE)) < 0:  # the header, or the rest of a page of the item before
        feed.skip_all_but(len(PAGE) - 1)
        if not feed.grow() or not feed.is_own:
            return
    feed.at = at
    while feed.is_own:
        if item.is_cut:
            yield Record(feed.data[feed.at :][:HEAD], _TOO_LARGE)
            return
        record = _take_page(feed, item)
        yield record
        while (at := feed.find(PAGE)) < 0 and feed.grow():
            pass
        at = len(feed.data) if at < 0 else at
        between = feed.data[feed.at : at]
        if at == len(feed.data) and item.is_last and _DUMP_END not in between:
            raise damaged(item.path, "the XML ends too early", "there is no </mediawiki> at its end")
        if between.strip() and _DUMP_END not in between:  # after it another export may follow
            yield Record(between[:HEAD], "between two pages there is something else")
        feed.at = at


def _take_page(feed: _Feed, item: Item) -> Record:
    """Take a page from the data, or what there is of it up to the next."""
    head, seen = b"", len(PAGE)
    while True:
        end = feed.find(_PAGE_END, seen)
        following = feed.data.find(PAGE, feed.at + seen, end if end >= 0 else len(feed.data))
        if following >= 0 or end >= 0:
            stop = following if following >= 0 else end + len(_PAGE_END)
            data = head or feed.data[feed.at : stop]
            is_large = len(data) > MAX_RECORD or bool(head)
            feed.at = stop
            if is_large or following >= 0:
                return Record(data[:HEAD], _TOO_LARGE if is_large else "its end is missing")
            return Record(data)
        if len(feed.data) - feed.at > MAX_RECORD:
            head = head or feed.data[feed.at :][:HEAD]
            feed.skip_all_but(len(_PAGE_END))
        seen = max(0 if head else len(PAGE), len(feed.data) - feed.at - len(_PAGE_END))
        if not feed.grow():
            if item.is_last:
                raise damaged(item.path, "the XML ends too early", "the last page has no end")
            data, feed.at = head or feed.data[feed.at :], len(feed.data)
            return Record(data[:HEAD], "its end is missing")


def split_lines(item: Item) -> Iterator[Record]:
    """Yield the lines that begin in an item, without their ends, empty ones too.

    Raises:
        SourceError: the data are damaged.
    """
    feed = _Feed(item)
    if item.is_cut:
        feed.grow()
        yield Record(feed.data[:HEAD], _TOO_LARGE)
        return
    # A line belongs to whoever has the line end before it, so that nobody need look back.
    if item.begins_record:
        feed.data, feed.end_of_own = _LINE_END, len(_LINE_END)
    while (at := feed.find(_LINE_END)) < 0:
        feed.skip_all_but(0)
        if not feed.grow() or not feed.is_own:
            return
    feed.at = at
    while feed.is_own:
        head, seen = b"", len(_LINE_END)
        while (end := feed.find(_LINE_END, seen)) < 0:
            if len(feed.data) - feed.at > MAX_RECORD:
                head = head or feed.data[feed.at + 1 :][:HEAD]
                feed.skip_all_but(1)
            seen = max(1, len(feed.data) - feed.at)
            if not feed.grow():
                end = len(feed.data)
                if not head and end == feed.at + 1:
                    return  # behind the end of the last line
                break
        data = head or feed.data[feed.at + 1 : end]
        yield Record(data, _TOO_LARGE) if head else Record(data)
        feed.at = end
