# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Token ids of the articles, encoded in worker processes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nemo_sr.data.indexed import write_documents
from nemo_sr.data.parallel import batches, map_ordered
from nemo_sr.data.progress import byte_bar
from nemo_sr.data.tokenizer import build_tokenizer
from nemo_sr.data.vocabulary import Vocabulary

_BATCH_BYTES = 1 << 19

_worker: dict[str, Any] = {}


def read_texts(articles: Path) -> Iterator[str]:
    """Yield the text of each article, in order."""
    with articles.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)["text"]


def encode_articles(articles: Path, vocabulary: Vocabulary, prefix: Path, *, workers: int) -> tuple[int, int]:
    """Write the articles' tokens, each article ended by the end of text, as PREFIX.bin and PREFIX.idx.

    Args:
        articles: Lines of JSON with a "text".
        vocabulary: Of the tokenizer.
        prefix: Path of the two files without their endings.
        workers: Number of processes that encode. The output does not depend on it.

    Returns:
        Number of documents and number of tokens, ends of text included.
    """
    with (
        articles.open("rb") as file,
        byte_bar("tokens", articles.stat().st_size) as bar,
    ):

        def documents() -> Iterator[NDArray[np.int32]]:
            grouped = batches(file, size=len, limit=_BATCH_BYTES)
            encoded = map_ordered(
                _encode_lines, grouped, workers=workers, initializer=_start_encoding, initargs=(vocabulary,)
            )
            for num_bytes, documents_of_batch in encoded:
                yield from documents_of_batch
                bar.update(num_bytes)

        return write_documents(documents(), prefix, vocab_size=len(vocabulary))


def _start_encoding(vocabulary: Vocabulary) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the parallelism is ours: one process per worker
    _worker["tokenizer"] = build_tokenizer(vocabulary)
    _worker["end"] = vocabulary.end_of_text


def _encode_lines(lines: list[bytes]) -> tuple[int, list[NDArray[np.int32]]]:
    documents = []
    for line in lines:
        ids = _worker["tokenizer"].encode(json.loads(line)["text"]).ids
        documents.append(np.array([*ids, _worker["end"]], dtype=np.int32))
    return sum(map(len, lines)), documents
