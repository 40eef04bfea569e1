# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Cutting out of wiki markup, by their brackets, the parts of which nothing is shown as text.

Each function goes through the text once, whatever is in it. What is opened and never closed is left for the parser.
"""

from __future__ import annotations

import re
from collections.abc import Set
from functools import cache

from nemo_sr.data.rendering import DROPPED_TAGS, REMOVED

_TAG = re.compile(rf"<!--|<({'|'.join(sorted(DROPPED_TAGS))})\b[^<>]*>", re.IGNORECASE)
_TEMPLATE_EDGE = re.compile(r"(\{\{)|\}\}")
_TABLE_EDGE = re.compile(r"^[ \t:*#;]*(\{\|)|^[ \t]*(\|\})(?!\})", re.MULTILINE)
_LINK_EDGE = re.compile(r"\[\[?|\]")


def cut_out(wikitext: str, hidden_prefixes: Set[str]) -> str:
    """Cut out comments, templates, tables, links to files and categories, and tags such as <ref> with what is in them.

    Args:
        wikitext: Markup without <nowiki> and the like, and without ``REMOVED``.
        hidden_prefixes: Lower-case prefixes of links that are not text.

    Returns:
        The rest, with ``REMOVED`` in place of all but comments.
    """
    text = _cut_tags(wikitext)
    if "{{" in text:
        text = _cut_pairs(text, _TEMPLATE_EDGE)
    if "{|" in text:
        text = _cut_pairs(text, _TABLE_EDGE)
    if "[[" in text:
        text = _cut_links(text, hidden_prefixes)
    return text


def _cut_tags(text: str) -> str:
    pieces: list[str] = []
    unclosed: set[str] = set()
    at = 0
    for match in _TAG.finditer(text):
        name = (match[1] or "").lower()
        if match.start() < at or name in unclosed:
            continue
        end = match.end() if match[0].endswith("/>") else _find_tag_end(text, name, match.end())
        if end is None:
            unclosed.add(name)
            continue
        pieces += [text[at : match.start()], REMOVED if name else ""]
        at = end
    return "".join([*pieces, text[at:]])


def _find_tag_end(text: str, name: str, at: int) -> int | None:
    """Find where a tag, or with no name a comment, ends."""
    if not name:
        end = text.find("-->", at)
        return None if end < 0 else end + 3
    depth = 1
    for edge in _tag_edges(name).finditer(text, at):
        depth += -1 if edge[0][1] == "/" else name == "table"  # only tables are nested
        if depth == 0:
            return edge.end()
    return None


@cache
def _tag_edges(name: str) -> re.Pattern[str]:
    return re.compile(rf"<{name}\b[^<>]*>|</{name}\s*>", re.IGNORECASE)


def _cut_pairs(text: str, edge: re.Pattern[str]) -> str:
    """Cut out from each opening edge (group 1 of the pattern) to the closing one that belongs to it."""
    starts: list[int] = []
    spans: list[tuple[int, int]] = []
    for match in edge.finditer(text):
        if match[1]:
            starts.append(match.start(1))
        elif starts:
            start = starts.pop()
            while spans and spans[-1][0] > start:
                spans.pop()
            spans.append((start, match.end()))
    return _without(text, spans)


def _cut_links(text: str, hidden_prefixes: Set[str]) -> str:
    """Cut out the links whose prefix is hidden, with the links and addresses in their captions."""
    opener = re.compile(rf"\[\[\s*(?:{'|'.join(map(re.escape, sorted(hidden_prefixes)))})\s*:", re.IGNORECASE)
    spans: list[tuple[int, int]] = []
    at = 0
    while match := opener.search(text, at):
        end = _find_link_end(text, match.start())
        if end is None:
            break
        spans.append((match.start(), end))
        at = end
    return _without(text, spans)


def _find_link_end(text: str, start: int) -> int | None:
    open_brackets: list[str] = []
    position = start
    while match := _LINK_EDGE.search(text, position):
        position = match.end()
        if match[0] != "]":
            open_brackets.append(match[0])
        elif open_brackets[-1] == "[":
            open_brackets.pop()
        elif text.startswith("]", position):
            position += 1
            open_brackets.pop()
        if not open_brackets:
            return position
    return None


def _without(text: str, spans: list[tuple[int, int]]) -> str:
    """Put ``REMOVED`` in the place of spans, which are in order."""
    pieces: list[str] = []
    at = 0
    for start, end in spans:
        pieces += [text[at:start], REMOVED]
        at = end
    return "".join([*pieces, text[at:]])
