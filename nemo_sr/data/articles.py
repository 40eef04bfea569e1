# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Articles of a dump as lines of JSON; decompressed, parsed and cleaned in worker processes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from nemo_sr.data.disambiguation import is_disambiguation
from nemo_sr.data.dump import PageError, Site, find_id, parse_page, read_site
from nemo_sr.data.journal import Journal, Stage
from nemo_sr.data.markup import MarkupError, clean
from nemo_sr.data.parallel import map_ordered
from nemo_sr.data.progress import stage_bar
from nemo_sr.data.records import PAGE, split_pages
from nemo_sr.data.sources import Item, Source, SourceError, cut_sources

COUNTS = (
    "pages",
    "redirects",
    "other_namespaces",
    "other_models",
    "articles",
    "disambiguations",
    "empty",
    "kept",
    "skipped",
    "markup_characters",
    "text_characters",
)
"""What is counted: pages; of these, redirects, those of other namespaces or without wiki markup, and articles; of
these, disambiguations, empty ones and those kept. Skipped is what cannot be read."""


@dataclass(frozen=True)
class _Task:
    item: Item
    site: Site
    keep_disambiguations: bool


def extract_articles(
    sources: Sequence[Source],
    output: Path,
    journal: Journal,
    *,
    workers: int,
    keep_disambiguations: bool = False,
    shard: tuple[int, int] = (0, 1),
) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """Write the articles of dumps (namespace 0, no redirects, not empty), in their order, one JSON object a line.

    Each has "text" (plain), "title", "id" and "url".

    Args:
        sources: MediaWiki exports.
        output: File to write; what the journal says of it is not made anew.
        journal: Of the run.
        workers: Number of processes. The output does not depend on it.
        keep_disambiguations: Whether pages that only list articles of like names are kept.
        shard: Which share of the dumps, from 0, and of how many.

    Returns:
        ``COUNTS``, and the pages that could not be read.

    Raises:
        SourceError: a dump cannot be read, or there is no article in all.
    """
    sites = {source.path: read_site(source) for source in sources}
    with Stage(journal, "articles", [output]) as stage:
        if not stage.is_done:
            total = sum(source.size or 0 for source in sources) // shard[1]
            with stage_bar("articles", total) as bar:
                tasks = (
                    _Task(item, sites[item.path], keep_disambiguations) for item in cut_sources(sources, PAGE, shard)
                )
                results = map_ordered(_extract, islice(tasks, stage.num_items, None), workers=workers)
                for lines, counts, skipped, num_bytes in results:
                    stage.add([lines], counts, skipped)
                    bar.set_postfix(articles=stage.counts["kept"], refresh=False)
                    bar.update(num_bytes)
        counts = {name: stage.counts[name] for name in COUNTS}
        if counts["kept"] == 0 and shard[1] == 1:
            raise SourceError(
                "a dump must hold at least one article, a page in namespace 0 that is no redirect and has text; "
                f"{', '.join(str(source.path) for source in sources)} has {counts['pages']} pages: "
                f"{counts['redirects']} redirects, {counts['other_namespaces']} in other namespaces, "
                f"{counts['other_models']} without wiki markup, {counts['disambiguations']} disambiguations, "
                f"{counts['empty']} empty, {counts['skipped']} that cannot be read. Pass a pages-articles dump."
            )
    return counts, stage.skipped


def _extract(task: _Task) -> tuple[bytes, dict[str, int], list[dict[str, Any]], int]:
    """Turn the pages of an item into lines; return these, counts, what was skipped, and the bytes it stands for."""
    counts: Counter[str] = Counter()
    skipped: list[dict[str, Any]] = []
    lines = b"".join(_article_lines(task, counts, skipped))
    return lines, dict(counts), skipped, task.item.num_bytes


def _article_lines(task: _Task, counts: Counter[str], skipped: list[dict[str, Any]]) -> Iterator[bytes]:
    for record in split_pages(task.item):
        counts["pages"] += 1
        title = None
        try:
            if record.problem:
                raise PageError(record.problem)
            page = parse_page(record.data, task.site)
            title = page.title
            if page.namespace != 0:
                counts["other_namespaces"] += 1
            elif page.redirect:
                counts["redirects"] += 1
            elif page.model != "wikitext":
                counts["other_models"] += 1
            elif not task.keep_disambiguations and is_disambiguation(page.title, page.text):
                counts.update(("articles", "disambiguations"))
            elif text := clean(page.text, hidden_prefixes=task.site.hidden_prefixes):
                counts.update(("articles", "kept"))
                counts["markup_characters"] += len(page.text)
                counts["text_characters"] += len(text)
                article = {"text": text, "title": title, "id": str(page.id), "url": task.site.url(title)}
                yield json.dumps(article, ensure_ascii=False).encode() + b"\n"
            else:
                counts.update(("articles", "empty"))
        except (PageError, MarkupError) as error:
            counts["skipped"] += 1
            skipped.append({"id": find_id(record.data), "title": title, "reason": str(error)})
