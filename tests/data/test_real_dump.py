# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The real dump: 206 pages of Wikipedia and GPT-2's vocabulary, where NEMO_SR_REAL_DATA says they are."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from megatron.core.datasets.indexed_dataset import IndexedDataset

from nemo_sr.data.dump import parse_page, read_site
from nemo_sr.data.indexed import check_prefix, read_vocab_size
from nemo_sr.data.markup import clean, tidy
from nemo_sr.data.preprocess import main
from nemo_sr.data.records import PAGE, split_pages
from nemo_sr.data.rendering import render
from nemo_sr.data.sources import Source
from nemo_sr.data.tokenizer import build_tokenizer
from nemo_sr.data.vocabulary import MERGES_NAME, VOCAB_NAME, Vocabulary

pytestmark = pytest.mark.skipif(
    not os.environ.get("NEMO_SR_REAL_DATA"),
    reason="NEMO_SR_REAL_DATA does not name the folder with the real dump and GPT-2's vocabulary",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    source = Path(os.environ["NEMO_SR_REAL_DATA"])
    out = tmp_path_factory.mktemp("real")
    files = ["--vocab", str(source / "gpt2" / VOCAB_NAME), "--merges", str(source / "gpt2" / MERGES_NAME)]
    dump = str(source / "enwiki-206-pages.xml.bz2")
    assert main(["--input", dump, "--output", str(out / "wiki"), *files, "--workers", "2"]) == 0
    return out


@pytest.fixture(scope="module")
def texts(folder):
    lines = (folder / "train_data.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line)["text"] for line in lines]


def test_counts(folder, texts):
    pages = json.loads((folder / "report.json").read_text())["pages"]
    assert (pages["pages"], pages["articles"], pages["disambiguations"], pages["kept"], len(texts)) == (
        206,
        106,
        8,
        98,
        98,
    )
    assert pages["redirects"] + pages["other_namespaces"] == 100
    assert (pages["empty"], pages["skipped"]) == (0, 0)


def test_tokens_are_the_texts(folder, texts):
    assert read_vocab_size(folder) == 50257
    tokenizer = build_tokenizer(Vocabulary.read(folder / VOCAB_NAME, folder / MERGES_NAME))
    check_prefix(folder / "wiki_text_document")
    data = IndexedDataset(str(folder / "wiki_text_document"))
    assert data.index.dtype == np.uint16
    documents = [data[i].tolist() for i in range(len(data))]
    assert [ids[-1] for ids in documents] == [50256] * 98
    assert [tokenizer.decode(ids[:-1]) for ids in documents] == texts
    # Known ids of GPT-2's tokenizer, so that a consistent but different encoding would not pass.
    assert tokenizer.encode("Hello world").ids == [15496, 995]


def test_shortcuts_change_nothing():
    """The text is that of the complete parser, though it sees little of the markup."""
    source = Source(Path(os.environ["NEMO_SR_REAL_DATA"]) / "enwiki-206-pages.xml.bz2")
    site = read_site(source)
    different = []
    for record in (record for item in source.items(PAGE) for record in split_pages(item)):
        page = parse_page(record.data, site)
        if page.redirect or page.id % 3:  # a third of them: the parser takes its time
            continue
        text = clean(page.text, hidden_prefixes=site.hidden_prefixes)
        if text != tidy(render(page.text, site.hidden_prefixes)):
            different.append(page.title)
    assert different == []


REMNANTS = {
    "templates": r"\{\{|\}\}",
    "links": r"\[\[|\]\]",
    "tables": r"\{\||\|\}|^(?:\|-|\|\+)|\b(?:col|row)span\b",
    "quotes": r"''",
    "tags": r"</?(?:ref|div|span|small|sup|sub|br|table|gallery|math|nowiki)\b",
    "comments": r"<!--|-->",
    "entities": r"&(?:[a-z]{2,8}|#\d+|#x[0-9a-f]+);",
    "files and categories": r"\b(?:File|Image|Category):\w",
    "headings": r"^=+.*=+$",
    "list markers": r"^[*#:;]",
    "markers": "[\0\x01]",
    "spaces": r"  |\t|\u00a0| \n|\n |\n\n\n",
}


@pytest.mark.parametrize("pattern", REMNANTS.values(), ids=REMNANTS.keys())
def test_no_markup_remains(texts, pattern):
    found = [
        text[max(0, match.start() - 40) : match.end() + 40]
        for text in texts
        for match in re.finditer(pattern, text, re.M)
    ]
    assert found == []


def test_known_sentences(texts):
    joined = "\n".join(texts)
    assert texts[0].startswith(
        "Anarchism is a political philosophy that advocates self-governed societies based on voluntary institutions. "
        "These are often described as stateless societies, although several authors have defined them"
    )
    assert "\n\nEtymology and terminology\n\nThe term anarchism is a compound word" in joined
