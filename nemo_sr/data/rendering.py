# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Any wiki markup to the text that a reader sees, by a complete parser."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Set

import mwparserfromhell
from mwparserfromhell.nodes import Argument, Comment, ExternalLink, Heading, HTMLEntity, Tag, Template, Text, Wikilink
from mwparserfromhell.wikicode import Wikicode

REMOVED = "\x01"
"""Stands where something was removed; XML cannot hold it, so it is in no text. (To the parser, NUL is the end.)"""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


DROPPED_TAGS = _words(
    "ref references gallery math chem ce score timeline graph hiero imagemap inputbox categorytree templatedata "
    "table mapframe maplink includeonly style script section templatestyles indicator"
)
LITERAL_TAGS = frozenset({"nowiki", "pre", "source", "syntaxhighlight"})
_BLOCK_TAGS = _words(
    "p div blockquote center ul ol li dl dt dd br hr pre source syntaxhighlight poem caption tr td th h1 h2 h3 h4 h5 h6"
)
BEHAVIOUR_SWITCHES = re.compile(
    "__(?:NOTOC|FORCETOC|TOC|NOEDITSECTION|NEWSECTIONLINK|NONEWSECTIONLINK|NOGALLERY|HIDDENCAT|EXPECTUNUSEDCATEGORY|"
    "NOCONTENTCONVERT|NOCC|NOTITLECONVERT|NOTC|START|END|INDEX|NOINDEX|STATICREDIRECT|NOGLOBAL|DISAMBIG)__"
)
QUOTES = re.compile("'{2,}")
INTERLANGUAGE = re.compile(r"(?:[a-z]{2,3}|simple|zh-[a-z-]+|[a-z]{2,3}-[a-z]{2,5}):\S")
_MAX_UNCLOSED_WORK = 1_000_000_000  # characters looked at for nothing, some 15 seconds
_BRACKETS = re.compile(
    r"(?P<brace>\{\{|\{\|)|(?P<not_brace>\}\}|\|\})|(?P<link>\[\[)|(?P<not_link>\]\])|(?P<site>\[(?=\w+:|//))|(?P<not_site>\])"
    r"|<(?:br|hr|wbr|li|dt|dd|t[dhr])\b|<[A-Za-z][^<>]*/>|(?P<tag><[A-Za-z])|(?P<not_tag></[A-Za-z])",
    re.IGNORECASE,
)


class MarkupError(ValueError):
    """Markup cannot be parsed in reasonable time."""


def render(wikitext: str, hidden_prefixes: Set[str]) -> str:
    """Return the text that a reader sees, with ``REMOVED`` wherever something was left out.

    Raises:
        MarkupError: so much of it is opened and never closed that the parser would not come to an end.
    """
    if (num_open := _count_unclosed(wikitext)) * len(wikitext) > _MAX_UNCLOSED_WORK:
        raise MarkupError(f"its markup opens {num_open} templates, links or tags that it does not close")
    pieces: list[str] = []
    try:
        # Bold and italics are told apart from apostrophes line by line in MediaWiki; left to the parser, an unbalanced
        # pair would break the links and templates around it.
        _render(mwparserfromhell.parse(wikitext, skip_style_tags=True), pieces, hidden_prefixes)
    except (mwparserfromhell.parser.ParserError, RecursionError) as error:
        raise MarkupError(f"its markup cannot be parsed ({type(error).__name__})") from error
    return "".join(pieces)


def _count_unclosed(wikitext: str) -> int:
    """Count what is opened and not closed: from each of these the parser looks to the end of the text in vain."""
    depth: Counter[str] = Counter()
    for match in _BRACKETS.finditer(wikitext):
        kind = match.lastgroup or ""
        if kind.startswith("not_"):
            kind = kind.removeprefix("not_")
            depth[kind] = max(0, depth[kind] - 1)
        elif kind:
            depth[kind] += 1
    return sum(depth.values())


def _render(code: Wikicode, pieces: list[str], hidden_prefixes: Set[str]) -> None:
    """Append the text that a reader sees of ``code``."""
    for node in code.nodes:
        if isinstance(node, Text):
            pieces.append(QUOTES.sub(keep_apostrophe, BEHAVIOUR_SWITCHES.sub("", node.value)))
        elif isinstance(node, HTMLEntity):
            pieces.append(html.unescape(str(node)))
        elif isinstance(node, Wikilink):
            _render_link(node, pieces, hidden_prefixes)
        elif isinstance(node, ExternalLink):
            if node.title is not None:
                _render(node.title, pieces, hidden_prefixes)
            else:
                pieces.append(REMOVED if node.brackets else html.unescape(str(node.url)))
        elif isinstance(node, Heading):
            _start_line(pieces)
            _render(node.title, pieces, hidden_prefixes)
        elif isinstance(node, Tag):
            _render_tag(node, pieces, hidden_prefixes)
        elif isinstance(node, (Template, Argument)):
            pieces.append(REMOVED)
        elif not isinstance(node, Comment):
            raise AssertionError(f"mwparserfromhell gave a node of the unknown kind {type(node).__name__}")


def _render_link(link: Wikilink, pieces: list[str], hidden_prefixes: Set[str]) -> None:
    title = str(link.title).strip()
    prefix, colon, _ = title.partition(":")
    if colon and prefix.strip().lower() in hidden_prefixes:
        pieces.append(REMOVED)
    elif link.text is not None and str(link.text).strip():
        _render(link.text, pieces, hidden_prefixes)
    elif INTERLANGUAGE.match(title):
        pieces.append(REMOVED)
    else:
        start = len(pieces)
        _render(link.title, pieces, hidden_prefixes)
        pieces[start:] = ["".join(pieces[start:]).strip().removeprefix(":")]


def _render_tag(tag: Tag, pieces: list[str], hidden_prefixes: Set[str]) -> None:
    name = str(tag.tag).strip().lower()
    if name in DROPPED_TAGS:
        pieces.append(REMOVED)
        return
    block = name in _BLOCK_TAGS and not tag.has("inline")
    if block:
        _start_line(pieces)
    if tag.wiki_markup is None and tag.contents is not None:
        if name in LITERAL_TAGS:
            content = str(tag.contents)
            pieces.append(content if name in ("source", "syntaxhighlight") else html.unescape(content))
        else:
            _render(tag.contents, pieces, hidden_prefixes)
    if block and tag.wiki_markup is None:
        _start_line(pieces)


def _start_line(pieces: list[str]) -> None:
    """Append a newline unless the text is at the beginning of a line."""
    if any(piece for piece in pieces[-8:]) and not "".join(pieces[-8:]).endswith("\n"):
        pieces.append("\n")


def keep_apostrophe(quotes: re.Match[str]) -> str:
    """Remove bold and italics: four apostrophes are bold and one apostrophe, more than five are both and the rest."""
    length = len(quotes[0])
    return "'" * (1 if length == 4 else max(0, length - 5))
