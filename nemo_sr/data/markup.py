# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Wiki markup to plain text.

What a reader sees is kept: prose, link texts, headings and list items (each on a line of its own), code. What is not
prose is removed: templates, references, tables, files, galleries, formulas, categories, comments. Where something was
removed, the brackets, commas and spaces that it leaves behind go too: "Oslo ({{IPA|...}}) is" becomes "Oslo is".
A template's text goes with it, "{{convert|5|km}}" too: expanding templates needs the wiki they live on.
"""

from __future__ import annotations

import html
import re
from collections.abc import Set

import mwparserfromhell
from mwparserfromhell.nodes import Argument, Comment, ExternalLink, Heading, HTMLEntity, Tag, Template, Text, Wikilink
from mwparserfromhell.wikicode import Wikicode

HIDDEN_PREFIXES = frozenset({"file", "image", "media", "category"})

_REMOVED = "\0"  # stands where something was removed; XML cannot hold it, so it is in no text


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_DROPPED_TAGS = _words(
    "ref references gallery math chem ce score timeline graph hiero imagemap inputbox categorytree templatedata "
    "table mapframe maplink includeonly style script section templatestyles indicator"
)
_LITERAL_TAGS = frozenset({"nowiki", "pre", "source", "syntaxhighlight"})
_BLOCK_TAGS = _words(
    "p div blockquote center ul ol li dl dt dd br hr pre source syntaxhighlight poem caption tr td th h1 h2 h3 h4 h5 h6"
)
_BEHAVIOUR_SWITCHES = re.compile(
    "__(?:NOTOC|FORCETOC|TOC|NOEDITSECTION|NEWSECTIONLINK|NONEWSECTIONLINK|NOGALLERY|HIDDENCAT|EXPECTUNUSEDCATEGORY|"
    "NOCONTENTCONVERT|NOCC|NOTITLECONVERT|NOTC|START|END|INDEX|NOINDEX|STATICREDIRECT|NOGLOBAL|DISAMBIG)__"
)
_QUOTES = re.compile("'{2,}")
_INTERLANGUAGE = re.compile(r"(?:[a-z]{2,3}|simple|zh-[a-z-]+|[a-z]{2,3}-[a-z]{2,5}):\S")

_REMOVED_LINE = re.compile("^[ \0*#:;]*\0[ \0]*(?:\n|\\Z)", re.MULTILINE)
_TIDIED = (
    (re.compile("^ *\0[\0 ,;:]*", re.MULTILINE), ""),
    (re.compile("\\([ ,;:/-]*\0[\0 ,;:/-]*\\)"), _REMOVED),
    (re.compile("\\( *\0[\0 ,;:]*"), "("),
    (re.compile("[ ,;:]*\0[\0 ,;:]*\\)"), ")"),
    (re.compile("[,;] *\0[\0 ]*(?=[,;.])"), ""),
    (re.compile(" *\0+(?=[ .,;:!?\\]]|$)", re.MULTILINE), ""),
    (re.compile("\0+"), ""),
)
_SPACES = re.compile(r"[^\S\n]+")
_LINE_ENDS = re.compile(" ?\n ?")
_BLANK_LINES = re.compile("\n{3,}")


def clean(wikitext: str, *, hidden_prefixes: Set[str] = HIDDEN_PREFIXES) -> str:
    """Turn wiki markup into plain text.

    Args:
        wikitext: One page's markup.
        hidden_prefixes: Lower-case prefixes of links that are not text, as ``Dump.hidden_prefixes`` gives them.

    Returns:
        Paragraphs separated by one blank line; within a line single spaces, none at its ends. "" if nothing is left.
    """
    # Bold and italics are told apart from apostrophes line by line in MediaWiki; left to the parser, an unbalanced
    # pair would break the links and templates around it.
    code = mwparserfromhell.parse(wikitext.replace(_REMOVED, ""), skip_style_tags=True)
    pieces: list[str] = []
    _render(code, pieces, hidden_prefixes)
    text = _SPACES.sub(" ", "".join(pieces))
    text = _LINE_ENDS.sub("\n", text)
    text = _REMOVED_LINE.sub("", text)
    for pattern, replacement in _TIDIED:
        text = pattern.sub(replacement, text)
    text = _LINE_ENDS.sub("\n", _SPACES.sub(" ", text))
    return _BLANK_LINES.sub("\n\n", text).strip()


def _render(code: Wikicode, pieces: list[str], hidden_prefixes: Set[str]) -> None:
    """Append the text that a reader sees of ``code``."""
    for node in code.nodes:
        if isinstance(node, Text):
            pieces.append(_QUOTES.sub(_keep_apostrophe, _BEHAVIOUR_SWITCHES.sub("", node.value)))
        elif isinstance(node, HTMLEntity):
            pieces.append(html.unescape(str(node)))
        elif isinstance(node, Wikilink):
            _render_link(node, pieces, hidden_prefixes)
        elif isinstance(node, ExternalLink):
            if node.title is not None:
                _render(node.title, pieces, hidden_prefixes)
            else:
                pieces.append(_REMOVED if node.brackets else html.unescape(str(node.url)))
        elif isinstance(node, Heading):
            _start_line(pieces)
            _render(node.title, pieces, hidden_prefixes)
        elif isinstance(node, Tag):
            _render_tag(node, pieces, hidden_prefixes)
        elif isinstance(node, (Template, Argument)):
            pieces.append(_REMOVED)
        elif not isinstance(node, Comment):
            raise AssertionError(f"mwparserfromhell gave a node of the unknown kind {type(node).__name__}")


def _render_link(link: Wikilink, pieces: list[str], hidden_prefixes: Set[str]) -> None:
    title = str(link.title).strip()
    prefix, colon, _ = title.partition(":")
    if colon and prefix.strip().lower() in hidden_prefixes:
        pieces.append(_REMOVED)
    elif link.text is not None and str(link.text).strip():
        _render(link.text, pieces, hidden_prefixes)
    elif _INTERLANGUAGE.match(title):
        pieces.append(_REMOVED)
    else:
        start = len(pieces)
        _render(link.title, pieces, hidden_prefixes)
        pieces[start:] = ["".join(pieces[start:]).strip().removeprefix(":")]


def _render_tag(tag: Tag, pieces: list[str], hidden_prefixes: Set[str]) -> None:
    name = str(tag.tag).strip().lower()
    if name in _DROPPED_TAGS:
        pieces.append(_REMOVED)
        return
    block = name in _BLOCK_TAGS and not tag.has("inline")
    if block:
        _start_line(pieces)
    if tag.wiki_markup is None and tag.contents is not None:
        if name in _LITERAL_TAGS:
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


def _keep_apostrophe(quotes: re.Match[str]) -> str:
    """Remove bold and italics: four apostrophes are bold and one apostrophe, more than five are both and the rest."""
    length = len(quotes[0])
    return "'" * (1 if length == 4 else max(0, length - 5))
