# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Token ids of documents in lines of JSON, encoded in worker processes."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nemo_sr.data.indexed import choose_type, write_index
from nemo_sr.data.journal import Journal, Stage
from nemo_sr.data.parallel import map_ordered
from nemo_sr.data.progress import stage_bar
from nemo_sr.data.records import split_lines
from nemo_sr.data.sources import Item, Source, SourceError, cut_sources
from nemo_sr.data.tokenizer import build_tokenizer
from nemo_sr.data.vocabulary import Vocabulary

_BATCH_CHARACTERS = 1 << 18

_worker: dict[str, Any] = {}


def read_texts(sources: Sequence[Source], key: str) -> Iterator[str]:
    """Yield the texts of the lines of JSON in some files, in order; lines without one are left out."""
    for item in cut_sources(sources, b"\n"):
        for record in split_lines(item):
            if record.data.strip() and not record.problem:
                text, _ = _read_text(record.data, key)
                if text:
                    yield text


def encode_documents(
    sources: Sequence[Source],
    vocabulary: Vocabulary,
    prefix: Path,
    journal: Journal,
    *,
    key: str = "text",
    append_eod: bool = True,
    workers: int,
    shard: tuple[int, int] = (0, 1),
    allow_none: bool = False,
) -> tuple[dict[str, int], list[dict[str, Any]], NDArray[np.int32]]:
    """Write the tokens of documents as PREFIX.bin and PREFIX.idx, one document a line.

    Args:
        sources: Lines of JSON.
        vocabulary: Of the tokenizer.
        prefix: Path of the two files without their endings; what the journal says of them is not made anew.
        journal: Of the run.
        key: Key of the text in a line.
        append_eod: Whether the end of text is added to each document.
        workers: Number of processes that encode. The output does not depend on it.
        shard: Which share of the lines, from 0, and of how many.
        allow_none: Whether there may be no document.

    Returns:
        Counts ("lines", and of these "documents", "empty", "skipped"; "tokens"), the lines that could not be read, and
        the tokens of each document.

    Raises:
        SourceError: the input cannot be read, or there is no document in all.
    """
    dtype = choose_type(len(vocabulary))
    lengths_path = prefix.with_name(prefix.name + ".lengths")
    with Stage(journal, "tokens", [Path(f"{prefix}.bin"), lengths_path]) as stage:
        if not stage.is_done:
            with stage_bar("tokens", sum(source.size or 0 for source in sources) // shard[1]) as bar:
                results = map_ordered(
                    _encode_item,
                    islice(cut_sources(sources, b"\n", shard), stage.num_items, None),
                    workers=workers,
                    initializer=_start_encoding,
                    initargs=(vocabulary, key, append_eod, dtype),
                )
                for path, parts, counts, skipped, num_bytes in results:
                    before = stage.counts[path]  # lines of this file so far
                    named = [{"file": path, **entry, "line": before + entry["line"]} for entry in skipped]
                    stage.add(parts, {**counts, path: counts["lines"]}, named)
                    bar.set_postfix(tokens=stage.counts["tokens"], refresh=False)
                    bar.update(num_bytes)
        counts = {name: stage.counts[name] for name in ("lines", "documents", "empty", "skipped", "tokens")}
        if counts["documents"] == 0 and not allow_none:
            raise SourceError(
                f"the input must hold at least one document, a line of JSON with a text under {key!r}; "
                f"{', '.join(str(source.path) for source in sources)} has {counts['lines']} lines: {counts['empty']} "
                f"empty, {counts['skipped']} that cannot be used. Check the input, and --json-key."
            )
    lengths = np.fromfile(lengths_path, np.int32)
    write_index(Path(f"{prefix}.idx"), lengths, dtype)
    return counts, stage.skipped, lengths


def _start_encoding(vocabulary: Vocabulary, key: str, append_eod: bool, dtype: np.dtype[Any]) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the parallelism is ours: one process per worker
    _worker["tokenizer"] = build_tokenizer(vocabulary)
    _worker["size"] = len(vocabulary)
    _worker["end"] = [vocabulary.end_of_text] if append_eod else []
    _worker["key"] = key
    _worker["dtype"] = dtype


def _encode_item(item: Item) -> tuple[str, list[bytes], dict[str, int], list[dict[str, Any]], int]:
    """Encode the lines of an item.

    Returns:
        The file, tokens and lengths as bytes, counts, what was skipped, and the bytes of input that it stands for.
    """
    counts: Counter[str] = Counter(lines=0)
    skipped: list[dict[str, Any]] = []
    tokens: list[NDArray[Any]] = []
    for texts in _batches(item, counts, skipped):
        for encoding in _worker["tokenizer"].encode_batch_fast(texts, add_special_tokens=False):
            ids = encoding.ids
            if not ids:
                counts["empty"] += 1
                continue
            if max(ids) >= _worker["size"]:
                raise ValueError(
                    f"ids must be in [0, {_worker['size']}), the vocabulary's size; the tokenizer gave {max(ids)}. "
                    "Pass the vocabulary and the merges of one tokenizer."
                )
            tokens.append(np.array(ids + _worker["end"], dtype=_worker["dtype"]))
    counts["documents"] = len(tokens)
    lengths = np.array([ids.size for ids in tokens], np.int32)
    counts["tokens"] = int(lengths.sum())
    parts = [b"".join(ids.tobytes() for ids in tokens), lengths.tobytes()]
    return str(item.path), parts, dict(counts), skipped, item.num_bytes


def _batches(item: Item, counts: Counter[str], skipped: list[dict[str, Any]]) -> Iterator[list[str]]:
    texts: list[str] = []
    size = 0
    for record in split_lines(item):
        counts["lines"] += 1
        if not record.data.strip():
            continue
        text, problem = (None, record.problem) if record.problem else _read_text(record.data, _worker["key"])
        if text is None:
            counts["skipped"] += 1
            skipped.append({"line": counts["lines"], "reason": problem})
            continue
        texts.append(text)
        size += len(text)
        if size >= _BATCH_CHARACTERS:
            yield texts
            texts, size = [], 0
    if texts:
        yield texts


def _read_text(line: bytes, key: str) -> tuple[str | None, str]:
    """Return the text of a line, or None and what is wrong with it."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        return None, f"it is not JSON in UTF-8 ({str(error)[:80]})"
    text = value.get(key) if isinstance(value, dict) else None
    if not isinstance(text, str):
        return None, f"it has no text under {key!r}"
    try:
        text.encode()
    except UnicodeEncodeError:
        return None, "its text is no valid Unicode: it has half of a surrogate pair"
    return text, ""
