# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Articles of a dump as lines of JSON, cleaned in worker processes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Set
from functools import partial
from pathlib import Path

from nemo_sr.data.dump import Dump, DumpError, Page
from nemo_sr.data.markup import clean
from nemo_sr.data.parallel import batches, map_ordered
from nemo_sr.data.progress import byte_bar

_BATCH_CHARACTERS = 1 << 18


def extract_articles(dump_path: Path, output: Path, *, workers: int) -> dict[str, int]:
    """Write the articles of a dump (namespace 0, no redirects, not empty), in its order, one JSON object a line.

    Each has "text" (plain), "title", "id" and "url".

    Args:
        dump_path: MediaWiki export.
        output: File to write.
        workers: Number of processes that clean markup. The output does not depend on it.

    Returns:
        Counts: "pages", and of these "redirects", "other_namespaces", "other_models" (no wiki markup), "empty" and
        "articles"; "markup_characters" read and "text_characters" kept in the articles.

    Raises:
        DumpError: the dump cannot be read, or holds no article.
    """
    counts: Counter[str] = Counter(
        dict.fromkeys(("pages", "redirects", "other_namespaces", "other_models", "empty", "articles"), 0)
    )
    with (
        Dump(dump_path) as dump,
        output.open("w", encoding="utf-8") as file,
        byte_bar("articles", dump_path.stat().st_size) as bar,
    ):
        grouped = batches(_articles(dump, counts), size=lambda page: len(page.text), limit=_BATCH_CHARACTERS)
        clean_pages = partial(_clean_pages, hidden_prefixes=dump.hidden_prefixes)
        for cleaned in map_ordered(clean_pages, grouped, workers=workers):
            for page_id, title, markup_length, text in cleaned:
                if not text:
                    counts["empty"] += 1
                    continue
                counts["articles"] += 1
                counts["markup_characters"] += markup_length
                counts["text_characters"] += len(text)
                record = {"text": text, "title": title, "id": str(page_id), "url": dump.url(title)}
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
            bar.update(dump.num_bytes_read() - bar.n)
    if counts["articles"] == 0:
        raise DumpError(
            "a dump must hold at least one article, a page in namespace 0 that is no redirect and has text; "
            f"{dump_path} has {counts['pages']} pages: {counts['redirects']} redirects, "
            f"{counts['other_namespaces']} in other namespaces, {counts['other_models']} without wiki markup, "
            f"{counts['empty']} empty. Pass a pages-articles dump."
        )
    return dict(counts)


def _articles(dump: Dump, counts: Counter[str]) -> Iterator[Page]:
    for page in dump:
        counts["pages"] += 1
        if page.namespace != 0:
            counts["other_namespaces"] += 1
        elif page.redirect:
            counts["redirects"] += 1
        elif page.model != "wikitext":
            counts["other_models"] += 1
        else:
            yield page


def _clean_pages(pages: list[Page], hidden_prefixes: Set[str]) -> list[tuple[int, str, int, str]]:
    return [(page.id, page.title, len(page.text), clean(page.text, hidden_prefixes=hidden_prefixes)) for page in pages]
