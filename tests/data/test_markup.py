# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Markup in, text out."""

import pytest

from nemo_sr.data.markup import HIDDEN_PREFIXES, clean, tidy
from nemo_sr.data.rendering import render

CASES = {
    # Style
    "bold": ("'''Oslo''' is", "Oslo is"),
    "italic": ("the ''Fram'' sailed", "the Fram sailed"),
    "bold italic": ("'''''both'''''", "both"),
    "bold with apostrophe": ("''''s Gravenhage", "'s Gravenhage"),
    "apostrophe": ("it's the dog's", "it's the dog's"),
    "unbalanced style": ("''open [[link]] on\nnext", "open link on\nnext"),
    # Links
    "link": ("[[Oslo]]", "Oslo"),
    "link with text": ("[[Oslo|the capital]]s", "the capitals"),
    "link to section": ("[[Oslo#Parks|parks]]", "parks"),
    "link with style": ("[[Fram|the ''Fram'']]", "the Fram"),
    "link shown with colon": ("see [[:Category:Ships]]", "see Category:Ships"),
    "interlanguage link": ("Text.\n\n[[de:Oslo]]\n[[zh-yue:Oslo]]", "Text."),
    "title with colon": ("[[2001: A Space Odyssey]]", "2001: A Space Odyssey"),
    "external link": ("[https://a.example/x?y=1&z=2 the site]", "the site"),
    "external link without text": ("see [https://a.example/x] there", "see there"),
    "bare address": ("at https://a.example/x?a=1&amp;b=2 now", "at https://a.example/x?a=1&b=2 now"),
    "category": ("Text.\n[[Category:Ships|Fram]]", "Text."),
    "file": ("[[File:A b.jpg|thumb|300px|A [[ship]], ''old'']]Text", "Text"),
    "file in capitals": ("[[IMAGE:A.jpg|right]]\nText", "Text"),
    "media": ("a [[Media:A.ogg|listen]] b", "a b"),
    # What is removed
    "template": ("A{{x}}B", "AB"),
    "nested templates": ("A {{x|{{y|z={{w}}}}|[[l]]}} B", "A B"),
    "infobox": ("{{Infobox\n| a = {{b}}\n| c = [[d]]\n}}\n'''Oslo''' is", "Oslo is"),
    "argument": ("A {{{1|{{{2}}}}}} B", "A B"),
    "parser function": ("{{#if:{{{a}}}|b|c}}Text", "Text"),
    "comment": ("A<!-- no {{ [[ -->B", "AB"),
    "comment over lines": ("A\n<!-- no\n\nno -->\nB", "A\n\nB"),
    "reference": ("A.<ref>B {{cite|c}}</ref> D.", "A. D."),
    "named reference": ('A.<ref name="x" /><ref name=y>z</ref> B', "A. B"),
    "references": ("A\n<references>\n<ref name=a>b</ref>\n</references>", "A"),
    "table": ('A\n{| class="x"\n|+ T\n! H !! I\n|-\n| a || [[b]]\n{| \n| inner\n|}\n|}\nB', "A\nB"),
    "HTML table": ("A\n<table><tr><td>x</td></tr></table>\nB", "A\nB"),
    "gallery": ("A\n<gallery>\nFile:x.jpg|y\n</gallery>\nB", "A\nB"),
    "formula": ("where <math>x^2 < {y}</math> holds", "where holds"),
    "behaviour switch": ("__NOTOC__\nText __init__ __FOO__", "Text __init__ __FOO__"),
    # What that leaves behind
    "empty parentheses": ("Oslo ({{IPA|x}}) is", "Oslo is"),
    "empty parentheses with signs": ("Oslo ({{a}}; {{b}}, ) is", "Oslo is"),
    "beginning of parentheses": ("Oslo ({{a}}, born 1048) is", "Oslo (born 1048) is"),
    "end of parentheses": ("Oslo (born 1048; {{a}}) is", "Oslo (born 1048) is"),
    "call": ("call f() or g( )", "call f() or g( )"),
    "comma": ("a, {{b}}, c", "a, c"),
    "full stop": ("a {{b}}.", "a."),
    "line start": ("* {{a}}: one\n* {{b}}", "one"),
    "line of a paragraph": ("A\n{{x}}\nB", "A\nB"),
    # Entities
    "entity": ("a &amp; b &lt;c&gt; &eacute;&#233;&#xE9;", "a & b <c> ééé"),
    "entity once": ("&amp;nbsp;", "&nbsp;"),
    "no-break space": ("5&nbsp;km\u00a0a", "5 km a"),
    "not an entity": ("AT&T; R&D", "AT&T; R&D"),
    # Layout
    "heading": ("A\n== B ==\nC\n=== ''D'' ===\n\nE", "A\nB\nC\nD\n\nE"),
    "list": ("* a\n** b\n# c\n: d\n; e", "a\nb\nc\nd\ne"),
    "definition": ("; term : meaning", "term\nmeaning"),
    "HTML list": ("<ul><li>a</li><li>b</li></ul>c", "a\nb\nc"),
    "line break": ("a<br>b<br />c", "a\nb\nc"),
    "rule": ("a\n----\nb", "a\n\nb"),
    "spaces": ("  a \t b  \n\n\n\n  c\u2028d ", "a b\n\nc d"),
    "inline tags": ('<small>a</small> <span style="x">b</span> H<sub>2</sub>O', "a b H2O"),
    "block tags": ("a<div>b</div>c<blockquote>d</blockquote>e", "a\nb\nc\nd\ne"),
    # Code
    "nowiki": ("<nowiki>''[[a]]'' {{b}} &amp;</nowiki>", "''[[a]]'' {{b}} &"),
    "empty nowiki": ("<nowiki />* a", "* a"),
    "pre": ("a<pre>b = '''c'''\nd</pre>e", "a\nb = '''c'''\nd\ne"),
    "code block": ('a\n<syntaxhighlight lang="python">\nx = {{1: "&amp;"}}\n</syntaxhighlight>\nb', None),
    "inline code": ('a <syntaxhighlight lang="c" inline>x[[1]]</syntaxhighlight> b', "a x[[1]] b"),
    "code": ("a <code>f(''x'')</code> b", "a f(x) b"),
    # Nothing
    "empty": ("", ""),
    "only removed": ("{{a}}\n<!-- b -->[[Category:C]]\n__NOTOC__ &nbsp;", ""),
}
CASES["code block"] = (CASES["code block"][0], 'a\n\nx = {{1: "&amp;"}}\n\nb')


@pytest.mark.parametrize(("wikitext", "text"), CASES.values(), ids=CASES.keys())
def test_clean(wikitext, text):
    assert clean(wikitext) == text


@pytest.mark.parametrize("wikitext", [wikitext for wikitext, _ in CASES.values()], ids=CASES.keys())
def test_shortcuts_change_nothing(wikitext):
    assert clean(wikitext) == tidy(render(wikitext, HIDDEN_PREFIXES))


def test_local_names_of_files_and_categories():
    wikitext = "A [[Datei:x.jpg|y]] [[Kategorie:Z]] B"
    assert clean(wikitext) == "A y Kategorie:Z B"
    assert clean(wikitext, hidden_prefixes=frozenset({"datei", "kategorie"})) == "A B"


def test_marker_in_the_input_is_ignored():
    assert clean("a\0b (\0)") == "ab ()"


@pytest.mark.parametrize(
    "wikitext", ["{{a", "[[a", "{| x\n| y", "<ref>a", "<!-- a", "'''''", "{{{", "[[File:x|[[y]", "<", "&#"]
)
def test_broken_markup_neither_fails_nor_removes_what_follows(wikitext):
    assert clean(wikitext + "\n\nThe end.").endswith("The end.")
