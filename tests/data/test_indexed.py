# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The .bin/.idx files: every byte is what Megatron-core writes, and what is broken is refused."""

import json
import shutil
import struct

import numpy as np
import pytest
from megatron.core.datasets.indexed_dataset import DType, IndexedDataset, IndexedDatasetBuilder

from nemo_sr.data.encoding import encode_documents
from nemo_sr.data.indexed import check_prefix, choose_type, read_lengths, write_index
from nemo_sr.data.journal import Journal
from nemo_sr.data.sources import Source
from nemo_sr.data.tokenizer import build_tokenizer
from nemo_sr.data.vocabulary import END_OF_TEXT, Vocabulary, byte_symbols

DOCUMENTS = [[1, 2, 3], [0], [7, 6, 5, 4]]


def write(prefix, documents=DOCUMENTS, vocab_size=8):
    dtype = choose_type(vocab_size)
    prefix.with_name(prefix.name + ".bin").write_bytes(b"".join(np.array(ids, dtype).tobytes() for ids in documents))
    write_index(prefix.with_name(prefix.name + ".idx"), np.array([len(ids) for ids in documents], np.int32), dtype)


def write_by_megatron(prefix, documents, vocab_size):
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=DType.optimal_dtype(vocab_size))
    for ids in documents:
        builder.add_document(np.array(ids), [len(ids)])
    builder.finalize(f"{prefix}.idx")


def same_bytes(first, second):
    return all(
        first.with_name(first.name + ending).read_bytes() == second.with_name(second.name + ending).read_bytes()
        for ending in (".bin", ".idx")
    )


@pytest.mark.parametrize("vocab_size", [257, 50257, 65499, 65500, 65501, 65536, 65537, 10**6])
def test_bytes_are_megatrons(tmp_path, vocab_size):
    documents = [[0, vocab_size - 1], [vocab_size - 2, min(65535, vocab_size - 1), min(32768, vocab_size - 1), 1]]
    write(tmp_path / "ours", documents, vocab_size)
    write_by_megatron(tmp_path / "theirs", documents, vocab_size)
    assert same_bytes(tmp_path / "ours", tmp_path / "theirs")
    check_prefix(tmp_path / "ours")
    assert read_lengths(tmp_path / "ours").tolist() == [2, 4]
    data = IndexedDataset(str(tmp_path / "ours"))
    assert data.index.dtype == (np.uint16 if vocab_size < 65_500 else np.int32)
    assert [data[i].tolist() for i in range(len(data))] == documents


@pytest.mark.parametrize("append_eod", [True, False])
@pytest.mark.parametrize("workers", [1, 2])
def test_encoded_documents_are_what_megatron_writes_for_the_same_tokens(tmp_path, workers, append_eod):
    texts = ["a b", "", "Ä\n" * 50, f"x {END_OF_TEXT}", " "]
    vocabulary = Vocabulary({**{symbol: i for i, symbol in enumerate(byte_symbols())}, END_OF_TEXT: 256}, [])
    lines = "".join(json.dumps({"body": text}) + "\n" for text in texts)
    (tmp_path / "d.jsonl").write_text(lines + "\n[]\n{\n" + json.dumps({"body": "\ud800"}), encoding="utf-8")
    (tmp_path / "stage").mkdir()
    counts, skipped, _ = encode_documents(
        [Source(tmp_path / "d.jsonl")], vocabulary, tmp_path / "ours", Journal(tmp_path / "stage", {}),
        key="body", append_eod=append_eod, workers=workers,
    )  # fmt: skip
    encode = build_tokenizer(vocabulary).encode
    end = [vocabulary.end_of_text] if append_eod else []
    write_by_megatron(tmp_path / "theirs", [encode(text).ids + end for text in texts if text], len(vocabulary))
    assert same_bytes(tmp_path / "ours", tmp_path / "theirs")
    assert (counts["lines"], counts["documents"], counts["empty"], counts["skipped"]) == (9, 4, 1, 3)
    assert [entry["line"] for entry in skipped] == [7, 8, 9]
    assert [entry["reason"].split(" (")[0] for entry in skipped] == [
        "it has no text under 'body'", "it is not JSON in UTF-8",
        "its text is no valid Unicode: it has half of a surrogate pair",
    ]  # fmt: skip


def edit(path, offset, data):
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def truncate(path, size):
    with path.open("r+b") as file:
        file.truncate(size)


# The index of DOCUMENTS: a header of 34 bytes, 3 lengths, 3 offsets, 4 boundaries; the data are 8 ids of 2 bytes.
BREAKS = {
    "no index": (lambda bin, idx: idx.unlink(), FileNotFoundError, r"d\.idx is not there"),
    "no data": (lambda bin, idx: bin.unlink(), FileNotFoundError, r"d\.bin is not there"),
    "empty index": (lambda bin, idx: truncate(idx, 0), ValueError, r"d\.idx must hold data; it is empty"),
    "empty data": (lambda bin, idx: truncate(bin, 0), ValueError, r"d\.bin must hold data; it is empty"),
    "short header": (lambda bin, idx: truncate(idx, 20), ValueError, "must begin with"),
    "other file": (lambda bin, idx: shutil.copy(__file__, idx), ValueError, "must begin with"),
    "other version": (lambda bin, idx: edit(idx, 9, b"\2"), ValueError, "version 1"),
    "other token type": (lambda bin, idx: edit(idx, 17, b"\x63"), ValueError, "has 1 and 99"),
    "no documents": (lambda bin, idx: edit(idx, 18, bytes(16)), ValueError, "at least one document"),
    "cut index": (
        lambda bin, idx: truncate(idx, 101),
        ValueError,
        "must have 102 bytes .* it has 101",
    ),
    "long index": (lambda bin, idx: edit(idx, 102, b"\0"), ValueError, "it has 103"),
    "wrong boundary": (lambda bin, idx: edit(idx, 94, struct.pack("<q", 2)), ValueError, "it ends at 2"),
    "cut data": (lambda bin, idx: truncate(bin, 14), ValueError, "16 bytes that .* describes; it has 14"),
    "long data": (lambda bin, idx: edit(bin, 16, b"\0\0"), ValueError, "it has 18"),
    "other type's data": (lambda bin, idx: edit(idx, 17, b"\4"), ValueError, "24 bytes that .* describes; it has 16"),
}


@pytest.mark.parametrize(("damage", "error", "message"), BREAKS.values(), ids=BREAKS.keys())
def test_damaged_data_are_refused(tmp_path, damage, error, message):
    write(tmp_path / "d")
    check_prefix(tmp_path / "d")
    assert (tmp_path / "d.idx").stat().st_size == 102
    damage(tmp_path / "d.bin", tmp_path / "d.idx")
    with pytest.raises(error, match=message) as caught:
        check_prefix(str(tmp_path / "d"))
    assert "preprocess_wikipedia.py" in str(caught.value)


def test_slips_in_the_prefix_are_named(tmp_path):
    write(tmp_path / "d_text_document")
    with pytest.raises(FileNotFoundError, match=r"Did you mean .*d_text_document"):
        check_prefix(tmp_path / "d")
    with pytest.raises(FileNotFoundError, match=r"Leave the ending \.idx out"):
        check_prefix(tmp_path / "d_text_document.idx")
