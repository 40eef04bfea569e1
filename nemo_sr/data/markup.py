# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Wiki markup to plain text.

What a reader sees is kept: prose, link texts, headings and list items (each on a line of its own), code. What is not
prose is removed: templates, references, tables, files, galleries, formulas, categories, comments. Where something was
removed, the brackets, commas and spaces that it leaves behind go too: "Oslo ({{IPA|...}}) is" becomes "Oslo is".
A template's text goes with it, "{{convert|5|km}}" too: expanding templates needs the wiki they live on.

A complete parser (``rendering``) would spend nearly all its time on what is removed and on prose without markup. So the
first is cut out by its brackets, plain lines are turned to text by patterns, and the parser gets the lines between.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterator, Set
from functools import partial
from html.entities import entitydefs

from nemo_sr.data.cutting import cut_out
from nemo_sr.data.rendering import (
    BEHAVIOUR_SWITCHES,
    INTERLANGUAGE,
    LITERAL_TAGS,
    QUOTES,
    REMOVED,
    MarkupError,
    keep_apostrophe,
    render,
)

__all__ = ["HIDDEN_PREFIXES", "MarkupError", "clean", "tidy"]

HIDDEN_PREFIXES = frozenset({"file", "image", "media", "category"})

_LITERAL = re.compile(rf"<(?:{'|'.join(sorted(LITERAL_TAGS))})\b|\{{\{{\{{", re.IGNORECASE)
_LINK = re.compile(r"\[\[([^\[\]{}|<>&\x01]+)(?:\|([^\[\]{}<>]*))?\]\]")
_ENTITY = re.compile(r"&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|([A-Za-z][A-Za-z0-9]*));")
_LIST_MARKS = re.compile(r"[*#:;]+")
_HEADING = re.compile(r"(={1,6})([^=]+)\1[ \t]*")
_TAG = re.compile(r"<(/?)([A-Za-z][A-Za-z0-9]*)\b[^<>]*?(/?)>")
_TAG_START = re.compile(r"</?[A-Za-z]|<!--")
_VOID_TAGS = frozenset({"br", "hr", "wbr"})
_NOT_PLAIN = re.compile(r"[\[\]{}]|<[A-Za-z/!]")
_NOT_PLAIN_ADDRESS = re.compile("&|''")

_TIDIED = (
    (re.compile("\x01+"), REMOVED),
    (re.compile("^ *\x01[\x01 ,;:]*", re.MULTILINE), ""),
    (re.compile("\\([ ,;:/-]*\x01[\x01 ,;:/-]*\\)"), REMOVED),
    (re.compile("\\( *\x01[\x01 ,;:]*"), "("),
    (re.compile("(?<![\x01 ,;:])[ ,;:]*\x01[\x01 ,;:]*\\)"), ")"),
    (re.compile("[,;] *\x01[\x01 ]*(?=[,;.])"), ""),
    (re.compile(" *\x01+(?=[ .,;:!?\\]]|$)", re.MULTILINE), ""),
    (re.compile("\x01+"), ""),
)
_SPACES = re.compile(r"[^\S\n]+")
_LINE_ENDS = re.compile(" ?\n ?")
_BLANK_LINES = re.compile("\n{3,}")


def clean(wikitext: str, *, hidden_prefixes: Set[str] = HIDDEN_PREFIXES) -> str:
    """Turn wiki markup into plain text.

    Args:
        wikitext: One page's markup.
        hidden_prefixes: Lower-case prefixes of links that are not text, as ``Site.hidden_prefixes`` gives them.

    Returns:
        Paragraphs separated by one blank line; within a line single spaces, none at its ends. "" if nothing is left.

    Raises:
        MarkupError: the markup is so broken that it cannot be parsed in reasonable time.
    """
    wikitext = wikitext.replace(REMOVED, "").replace("\0", "")
    if _LITERAL.search(wikitext):
        text = render(wikitext, hidden_prefixes)
    else:
        text = "\n".join(_render_lines(cut_out(wikitext, hidden_prefixes), hidden_prefixes))
    return tidy(text)


def tidy(text: str) -> str:
    """Remove what ``REMOVED`` parts leave behind, needless spaces and blank lines.

    Args:
        text: As ``rendering.render`` returns it.
    """
    text = _LINE_ENDS.sub("\n", _SPACES.sub(" ", text))
    if REMOVED in text:
        text = "\n".join(line for line in text.split("\n") if not _is_removed(line))
        for pattern, replacement in _TIDIED:
            text = pattern.sub(replacement, text)
        text = _LINE_ENDS.sub("\n", _SPACES.sub(" ", text))
    return _BLANK_LINES.sub("\n\n", text).strip()


def _is_removed(line: str) -> bool:
    """Tell whether nothing is left of a line but marks of a list."""
    return REMOVED in line and not line.strip(" *#:;" + REMOVED) and line.rstrip(" ").endswith(REMOVED)


def _render_lines(wikitext: str, hidden_prefixes: Set[str]) -> Iterator[str]:
    """Yield the text of each line, or of several where something begins in one and ends in another."""
    lines = wikitext.split("\n")
    link = partial(_render_link, hidden_prefixes=hidden_prefixes)
    texts = [_render_plain(line, link) for line in lines]
    crossing = [number for number, text in enumerate(texts) if text is None and not _is_balanced(lines[number])]
    first, last = (crossing[0], crossing[-1]) if crossing else (len(lines), len(lines))
    for number, text in enumerate(texts):
        if number == first:
            yield render("\n".join(lines[first : last + 1]), hidden_prefixes)
        elif not first < number <= last:
            yield render(lines[number], hidden_prefixes) if text is None else text


def _render_plain(line: str, link: partial[str]) -> str | None:
    """Return the text of a line, or None if it has markup that takes a parser."""
    if "[" in line:
        line = _LINK.sub(link, line)
    if _NOT_PLAIN.search(line) or ("://" in line and _NOT_PLAIN_ADDRESS.search(line)):
        return None
    first = line[:1]
    if first == "=":
        heading = _HEADING.fullmatch(line)
        if heading is None:
            return None
        line = heading[2]
    elif first == "-" and line.startswith("----"):
        return None
    elif first and first in "*#:;":
        if ";" in line and ":" in line and ";" in _LIST_MARKS.match(line)[0]:  # type: ignore[index]
            return None
        line = _LIST_MARKS.sub("", line, count=1)
    if "''" in line:
        line = QUOTES.sub(keep_apostrophe, line)
    if "__" in line:
        line = BEHAVIOUR_SWITCHES.sub("", line)
    return _ENTITY.sub(_render_entity, line) if "&" in line else line


def _render_link(match: re.Match[str], hidden_prefixes: Set[str]) -> str:
    """Return the text of a simple link, or the link where that is not simple."""
    title, text = match[1].strip(), match[2]
    prefix, colon, _ = title.partition(":")
    if colon and prefix.strip().lower() in hidden_prefixes:
        return REMOVED
    if text is None or not text.strip():
        if colon and INTERLANGUAGE.match(title):
            return REMOVED
        text = title.removeprefix(":")
    # Next to quotes outside, an apostrophe at the edge would become one of them.
    return match[0] if "'" in (text[:1], text[-1:]) or "://" in text else text


def _render_entity(match: re.Match[str]) -> str:
    decimal, hexadecimal, name = match.groups()
    if name is not None:
        return html.unescape(match[0]) if name in entitydefs else match[0]
    number = int(decimal) if decimal else int(hexadecimal, 16)
    return html.unescape(match[0]) if 0 < number <= 0x10FFFF else match[0]


def _is_balanced(line: str) -> bool:
    """Tell whether everything that a line opens is closed in it."""
    if line.count("[[") != line.count("]]") or "{{" in line or "}}" in line or "{|" in line or "|}" in line:
        return False
    if "<" not in line:
        return True
    depth: Counter[str] = Counter()
    num_tags = 0
    for closes, name, is_empty in _TAG.findall(line):
        num_tags += 1
        name = name.lower()
        if is_empty or name in _VOID_TAGS:
            continue
        depth[name] += -1 if closes else 1
        if depth[name] < 0:
            return False
    return not any(depth.values()) and num_tags == len(_TAG_START.findall(line))
