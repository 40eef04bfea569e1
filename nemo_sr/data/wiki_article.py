# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Wiki articles written from documentation, each with the plain text that a reader would see."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from random import Random

from nemo_sr.data.library_docs import Entry

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*[A-Za-z0-9_]")
_SPECIAL = re.compile(r"\[(?=\[)|(?<=\[)\[|\](?=\])|(?<=\])\]|\[(?=[A-Za-z]+:)|\{(?=[{|])|(?<=\{)\{|\}(?=\})|(?<=\})\}")
_LIST_ITEM = re.compile(r"\s*[-*o]\s+\S")
_LINE_STARTS = "*#:;=|!{- "


def write_article(entry: Entry, titles: Mapping[str, str], rng: Random) -> tuple[str, str]:
    """Write the article on an entry.

    Args:
        entry: What to write about.
        titles: Qualified name -> title of every article, for links.
        rng: Decides which ornaments the article gets.

    Returns:
        The wiki markup, and the plain text that a reader sees.
    """
    article = _Article(entry, titles, rng)
    article.write()
    return "\n\n".join(article.markup), "\n\n".join(article.text)


class _Article:
    """Blocks of markup, and the visible text of those that have any."""

    def __init__(self, entry: Entry, titles: Mapping[str, str], rng: Random) -> None:
        self.markup: list[str] = []
        self.text: list[str] = []
        self.entry = entry
        self.titles = titles
        self.rng = rng
        self._linked: set[str] = {entry.name}
        self._num_refs = 0

    def write(self) -> None:
        entry = self.entry
        self.hidden(
            f"{{{{Infobox software\n| name = {{{{nowrap|{entry.name}}}}}\n| kind = [[{entry.kind}]]\n"
            f"| members = {len(entry.members)}\n| license = {{{{Plainlist|\n* {{{{small|PSF}}}}\n}}}}\n}}}}"
        )
        if self.rng.random() < 0.5:
            self.hidden(f"[[File:{entry.name} icon.svg|thumb|alt=An icon|'''{entry.name}''' as a [[picture|drawing]]]]")
        self.lead()
        self.documentation(entry.doc)
        if entry.children:
            self.heading("Classes", 2)
            self.link_list(entry.children)
        if entry.members:
            self.heading("Functions" if entry.kind == "module" else "Methods", 2)
            self.member_table()
            for name, signature, doc in entry.members:
                if doc:
                    self.heading(name, 3)
                    self.add(f"<code>{_protect(name + signature)}</code>", _flat(name + signature))
                    self.documentation(doc)
        self.end()

    def lead(self) -> None:
        name, kind = self.entry.name, self.entry.kind
        bold = f"'''{name}'''" if self.rng.random() < 0.5 else f"'''''{name}'''''"
        what = {"module": "a module of", "class": "a class in", "topic": "a topic of the reference that comes with"}[
            kind
        ]
        aside = self.rng.choice(("", " ({{IPAc-en|p|ai}})", " ({{lang|en|x}}; {{small|y}})"))
        self.add(
            f"{bold}{aside} is {what}&nbsp;the [[Python (programming language)|Python]]&#32;standard "
            f"library&mdash;version ''any''.{self.reference()}<!-- generated -->",
            f"{name} is {what} the Python standard library—version any.",
        )

    def documentation(self, doc: str) -> None:
        """Add a docstring: code as code, lists as lists, the rest as paragraphs."""
        for block in re.split(r"\n[ \t]*\n", doc):
            lines = [line for line in block.expandtabs().split("\n") if line.strip()]
            if not lines:
                continue
            if any(line.lstrip().startswith(">>>") for line in lines) or all(line.startswith("    ") for line in lines):
                code = "\n".join(lines)
                self.add(f'<syntaxhighlight lang="python">\n{code}\n</syntaxhighlight>', _flat_lines(lines))
            elif len(lines) > 1 and all(_LIST_ITEM.match(line) for line in lines):
                items = [_flat(line).split(" ", 1)[1] for line in lines]
                self.add("\n".join(f"* {self.prose(item)}" for item in items), "\n".join(items))
            else:
                flat = _flat(block)
                self.add(self.prose(flat) + self.reference(), flat)

    def prose(self, flat: str) -> str:
        """Write a paragraph as markup: special characters protected, some words linked or emphasised."""
        pieces: list[str] = []
        end = 0
        for match in _WORD.finditer(flat):
            word = match[0]
            # Next to other signs a word may be part of an address or an expression: leave those whole.
            around = flat[max(0, match.start() - 1) : match.start()] + flat[match.end() : match.end() + 1]
            if not set(around) <= set(" ,.;"):
                continue
            marked = self.mark(word)
            if marked != word:
                pieces += [_protect(flat[end : match.start()], first=end == 0), marked]
                end = match.end()
        pieces.append(_protect(flat[end:], first=end == 0))
        return "".join(pieces)

    def mark(self, word: str) -> str:
        if word in self.titles and word not in self._linked and self.rng.random() < 0.5:
            self._linked.add(word)
            title = self.titles[word]
            return f"[[{title}]]" if title == word and self.rng.random() < 0.5 else f"[[{title}#Use|{word}]]"
        if len(word) > 6 and self.rng.random() < 0.01:
            style = self.rng.choice(
                (
                    "''{}''",
                    "<small>{}</small>",
                    '<span style="color: red">{}</span>',
                    "[https://example.org/q?a=1&b={0} {0}]",
                )
            )
            return style.format(word)
        return word

    def reference(self) -> str:
        """Write a footnote, or none."""
        if self.rng.random() > 0.3:
            return ""
        if self._num_refs and self.rng.random() < 0.3:
            return f'<ref name="doc{self.rng.randint(1, self._num_refs)}" />'
        self._num_refs += 1
        return (
            f'<ref name="doc{self._num_refs}">{{{{Cite web |title={self.entry.name} |url=https://docs.python.org/3/ '
            f"|date={{{{Version|{self._num_refs}}}}}}}}} See ''there''.</ref>"
        )

    def member_table(self) -> None:
        rows = "".join(
            f"|-\n| <code>{name}</code> || {_protect(_flat(doc)[:60])}\n" for name, _, doc in self.entry.members[:20]
        )
        self.hidden(f'{{| class="wikitable sortable"\n|+ Members\n! Name !! Summary\n{rows}|}}')

    def link_list(self, names: list[str]) -> None:
        known = [name for name in names if name in self.titles]
        lines = [f"* [[{self.titles[name]}|{name}]]" for name in known]
        self.add("\n".join(lines), "\n".join(known))

    def end(self) -> None:
        name = self.entry.name
        parent = name.rpartition(".")[0]
        if parent in self.titles:
            self.heading("See also", 2)
            self.link_list([parent])
        self.heading("References", 2)
        self.hidden("<references />" if self.rng.random() < 0.5 else "{{Reflist|2}}")
        self.heading("External links", 2)
        self.add(
            f"* [https://docs.python.org/3/search.html?q={name.replace(' ', '+')} Search for {name}]\n"
            "* {{Official website|https://docs.python.org/}}",
            f"Search for {name}",
        )
        plural = {"module": "Modules", "class": "Classes", "topic": "Topics"}[self.entry.kind]
        self.hidden(f"[[Category:{plural}|{name}]]\n[[fr:{self.titles[name]}]]\n__NOTOC__")

    def heading(self, title: str, level: int) -> None:
        self.add(f"{'=' * level} {title} {'=' * level}", title)

    def add(self, markup: str, text: str) -> None:
        if text:
            self.markup.append(markup)
            self.text.append(text)

    def hidden(self, markup: str) -> None:
        self.markup.append(markup)


def _flat(text: str) -> str:
    return " ".join(text.split())


def _flat_lines(lines: list[str]) -> str:
    return "\n".join(_flat(line) for line in lines)


def _protect(text: str, *, first: bool = True) -> str:
    """Write plain text so that a wiki shows it unchanged."""
    text = escape(text, quote=False)
    text = _SPECIAL.sub(lambda match: f"&#{ord(match[0])};", text)
    text = re.sub("'{2,}", lambda match: f"<nowiki>{match[0]}</nowiki>", text)
    return f"<nowiki />{text}" if first and text[:1] and text[0] in _LINE_STARTS else text
