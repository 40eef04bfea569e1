# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The .bin/.idx files: what is written is what Megatron-core reads, and what is broken is refused."""

import shutil
import struct

import numpy as np
import pytest
from megatron.core.datasets.indexed_dataset import IndexedDataset

from nemo_sr.data.indexed import check_prefix, write_documents

DOCUMENTS = [[1, 2, 3], [0], [7, 6, 5, 4]]


def write(prefix, documents=DOCUMENTS, vocab_size=8):
    return write_documents((np.array(ids, dtype=np.int32) for ids in documents), prefix, vocab_size=vocab_size)


@pytest.mark.parametrize(
    ("vocab_size", "dtype"),
    [(size, np.uint16) for size in (257, 50257, 65499)] + [(size, np.int32) for size in (65536, 65537, 10**6)],
)
def test_largest_id_survives(tmp_path, vocab_size, dtype):
    documents = [[0, vocab_size - 1], [vocab_size - 2, min(65535, vocab_size - 1), min(32768, vocab_size - 1), 1]]
    assert write(tmp_path / "d", documents, vocab_size) == (2, 6)
    check_prefix(tmp_path / "d")
    data = IndexedDataset(str(tmp_path / "d"))
    assert data.index.dtype == dtype
    assert [data[i].tolist() for i in range(len(data))] == documents
    assert data.document_indices.tolist() == [0, 1, 2]
    assert data.sequence_lengths.tolist() == [2, 4]


@pytest.mark.parametrize("ids", [[8], [-1], []])
def test_ids_outside_the_vocabulary_are_refused(tmp_path, ids):
    with pytest.raises(ValueError, match=r"document 1 has"):
        write(tmp_path / "d", [[1], ids])
    assert not (tmp_path / "d.idx").exists()


def test_no_documents_are_refused(tmp_path):
    with pytest.raises(ValueError, match="at least one document"):
        write(tmp_path / "d", [])
    assert not (tmp_path / "d.idx").exists()


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
