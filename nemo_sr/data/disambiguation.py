# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Pages that are no articles but lists of articles of like names."""

from __future__ import annotations

import re

# Names of the templates with which wikis mark them, before any of "|", "}", "-" or a space. What a template does is
# written in the template; a table serves, because the names rarely change. English, German, French, Spanish, Italian,
# Portuguese, Dutch, Polish, Swedish, Russian, Ukrainian, Czech, Japanese, Chinese, Korean, Arabic, Persian.
_TEMPLATES = (
    "disambig|disambiguation|disamb|dab|hndis|geodis|numberdis|letter-numbercombdisambig|schooldis|roaddis|"
    "mathdab|mountainindex|hospitaldis|biology disambiguation|human name disambiguation|place name disambiguation|"
    "begriffsklärung|bkl|homonymie|homonymes|paronymie|desambiguación|desambiguacion|disambigua|desambiguação|"
    "doorverwijspagina|ujednoznacznienie|förgrening|gaffel|неоднозначность|неоднозначність|багатозначність|"
    "rozcestník|aimai|曖昧さ回避|消歧义|消歧義|동음이의어|توضيح|ابهام‌زدایی"
)
_MARK = re.compile(rf"__DISAMBIG__|\{{\{{\s*(?:{_TEMPLATES})\s*[|}}]", re.IGNORECASE)
_TITLE = re.compile(
    r"\((?:disambiguation|Begriffsklärung|homonymie|desambiguación|disambigua|desambiguação|значения)\)$"
)


def is_disambiguation(title: str, wikitext: str) -> bool:
    """Tell whether a page only lists articles of like names.

    Args:
        title: Its title.
        wikitext: Its markup.
    """
    return _TITLE.search(title) is not None or _MARK.search(wikitext) is not None
