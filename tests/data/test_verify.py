# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Verifying .bin/.idx: what Megatron-core wrote passes, and whatever is changed in it is found at its byte."""

import struct

import numpy as np
import pytest
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

from nemo_sr.data.verify import BadByteError, main, verify

DOCUMENTS = [[[1, 2, 3]], [[0], [7, 6]], [[5, 4, 7]]]  # the second holds two sequences
# The index: a header of 34 bytes, 4 lengths at 34, 4 offsets at 50, 4 bounds at 82, 114 bytes in all; 9 ids of 2 bytes.


@pytest.fixture
def prefix(tmp_path):
    builder = IndexedDatasetBuilder(str(tmp_path / "d.bin"), dtype=np.uint16)
    for sequences in DOCUMENTS:
        builder.add_document(np.array([i for ids in sequences for i in ids]), [len(ids) for ids in sequences])
    builder.finalize(str(tmp_path / "d.idx"))
    return tmp_path / "d"


def test_good_files_pass(prefix):
    contents = verify(prefix, vocab_size=8)
    assert [contents.document(i).tolist() for i in range(3)] == [[1, 2, 3], [0, 7, 6], [5, 4, 7]]
    assert contents.largest == 7


def edit(ending, offset, data):
    def change(prefix):
        with open(f"{prefix}{ending}", "r+b") as file:
            file.seek(offset)
            file.write(data)

    return change


def cut(ending, size):
    def change(prefix):
        with open(f"{prefix}{ending}", "r+b") as file:
            file.truncate(size)

    return change


# name -> (change, file, first bad byte, piece of the message)
BREAKS = {
    "empty index": (cut(".idx", 0), ".idx", 0, "the file ends there: no .idx file"),
    "foreign": (edit(".idx", 0, b"#!/usr/bin"), ".idx", 0, "the file has 0x23 there"),
    "foreign from the fourth byte": (edit(".idx", 3, b"X"), ".idx", 3, "has 0x58"),
    "cut in the magic": (cut(".idx", 5), ".idx", 5, "the file ends there"),
    "cut in the header": (cut(".idx", 20), ".idx", 20, "the header takes 34 bytes"),
    "version": (edit(".idx", 9, b"\2"), ".idx", 9, "version must be 1; it is 2"),
    "type": (edit(".idx", 17, b"\x63"), ".idx", 17, "it is 99"),
    "floating point": (edit(".idx", 17, b"\7"), ".idx", 17, "it is 7"),
    "no sequences": (edit(".idx", 18, bytes(8)), ".idx", 18, "at least one sequence"),
    "too many bounds": (edit(".idx", 26, b"\6"), ".idx", 26, "there are 6"),
    "cut index": (cut(".idx", 113), ".idx", 113, "take 114 bytes; the file has 113"),
    "long index": (edit(".idx", 114, b"\0"), ".idx", 114, "the file has 115"),
    "length": (edit(".idx", 38, struct.pack("<i", 0)), ".idx", 38, "sequence 1 must hold a token"),
    "offset": (edit(".idx", 66, struct.pack("<q", 9)), ".idx", 66, "sequence 2 begins at byte 8"),
    "first bound": (edit(".idx", 82, b"\1"), ".idx", 82, "the index says 1"),
    "bounds that go back": (edit(".idx", 98, b"\1"), ".idx", 98, "document 1 must hold a sequence"),
    "last bound": (edit(".idx", 106, b"\5"), ".idx", 106, "ends at sequence 4; the index says 5"),
    "cut data": (cut(".bin", 17), ".bin", 17, "take 18 bytes; the file has 17"),
    "long data": (edit(".bin", 18, b"\0\0"), ".bin", 18, "the file has 20"),
    "id": (edit(".bin", 6, b"\x08\0"), ".bin", 6, "token 3 is 8"),
    "end of text": (
        edit(".bin", 10, b"\1\0"),
        ".bin",
        4,
        "document 0 must end with the end of text, 7; it ends with 3",
    ),
}


@pytest.mark.parametrize(("change", "file", "offset", "message"), BREAKS.values(), ids=BREAKS.keys())
def test_first_bad_byte_is_named(prefix, change, file, offset, message):
    change(prefix)
    with pytest.raises(BadByteError, match=message) as caught:
        verify(prefix, vocab_size=8, end_of_text=7)
    assert str(caught.value).startswith(f"{prefix}{file}, byte {offset}: ")


def test_command_line(sample_data, tmp_path, capsys):
    prefix = sample_data / "sample_text_document"
    assert main([str(prefix), "--samples", "2"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert "documents" in shown[0]
    assert "all below the vocabulary's 2048" in shown[0]
    num_documents = shown[0].split(": ")[1].split()[0]
    assert shown[1] == f"{num_documents} of {num_documents} documents end with the end of text, 2047"
    assert len(shown) == 2 + 2 * 2
    for ending in (".bin", ".idx"):
        data = (sample_data / f"sample_text_document{ending}").read_bytes()
        (tmp_path / f"d{ending}").write_bytes(data[:-2])
        (tmp_path / ("d.idx" if ending == ".bin" else "d.bin")).write_bytes(
            (sample_data / f"sample_text_document{'.idx' if ending == '.bin' else '.bin'}").read_bytes()
        )
        assert main([str(tmp_path / "d")]) == 1
        assert f"d{ending}, byte {len(data) - 2}: " in capsys.readouterr().err
    assert main([str(tmp_path / "none")]) == 1
