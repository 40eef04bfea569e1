# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Megatron-core's .bin/.idx files: writing their index, and checking them before a run.

Written and read without Megatron-core, so that data can be made where it is not installed, by many processes, and
joined; the tests compare every byte with its IndexedDatasetBuilder. Source: megatron/core/datasets/indexed_dataset.py.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nemo_sr.data.vocabulary import read_vocab_size

__all__ = ["check_prefix", "choose_type", "read_lengths", "read_vocab_size", "write_index"]

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")
"""Magic, version, code of the type of ids, number of sequences, number of document boundaries."""
ITEM_TYPES = {
    code: np.dtype(name)
    for code, name in enumerate(("uint8", "int8", "int16", "int32", "int64", "float64", "float32", "uint16"), start=1)
}
"""Code -> type of ids."""

_MAKE = "Make the data with scripts/preprocess_wikipedia.py"


def choose_type(vocab_size: int) -> np.dtype[Any]:
    """Return the type in which Megatron-core stores ids: two bytes below 65,500 different ones, else four."""
    return np.dtype(np.uint16 if vocab_size < 65_500 else np.int32)


def write_index(path: Path, lengths: NDArray[np.int32], dtype: np.dtype[Any]) -> None:
    """Write an .idx file for documents of one sequence each.

    Args:
        path: The file.
        lengths: Tokens of each document. Shape (num_documents,).
        dtype: Type of the ids in the .bin file.
    """
    code = next(code for code, stored in ITEM_TYPES.items() if stored == dtype)
    offsets = np.zeros(lengths.size, np.int64)
    np.cumsum(lengths[:-1], out=offsets[1:], dtype=np.int64)
    offsets *= dtype.itemsize
    with path.open("wb") as file:
        file.write(HEADER.pack(MAGIC, 1, code, lengths.size, lengths.size + 1))
        for array in (lengths.astype("<i4"), offsets.astype("<i8"), np.arange(lengths.size + 1, dtype="<i8")):
            array.tofile(file)


def read_lengths(prefix: Path) -> NDArray[np.int32]:
    """Read the number of tokens of each sequence from PREFIX.idx, which ``check_prefix`` has accepted."""
    with open(f"{prefix}.idx", "rb") as file:
        num_sequences = HEADER.unpack(file.read(HEADER.size))[3]
        return np.fromfile(file, np.int32, num_sequences)


def check_prefix(prefix: Path | str) -> None:
    """Check that PREFIX.bin and PREFIX.idx are there, complete, and of one run; takes milliseconds at any size.

    Args:
        prefix: Path of the two files without their endings, as Megatron-core takes it.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is empty, is not of this format, or does not match the other.
    """
    prefix = str(prefix)
    sizes = {}
    for ending in (".idx", ".bin"):
        path = prefix + ending
        if not os.path.isfile(path):
            raise FileNotFoundError(
                f"a data prefix must name two files, PREFIX.bin and PREFIX.idx; {path} is not there. {_hint(prefix)}"
            )
        sizes[ending] = os.path.getsize(path)
        if sizes[ending] == 0:
            raise ValueError(f"{path} must hold data; it is empty. {_MAKE}.")
    _check_contents(prefix, sizes[".idx"], sizes[".bin"])


def _check_contents(prefix: str, idx_size: int, bin_size: int) -> None:
    path = prefix + ".idx"
    with open(path, "rb") as file:
        header = file.read(HEADER.size)
        if len(header) < HEADER.size or header[:9] != MAGIC:
            raise ValueError(
                f"an index must begin with Megatron's MMIDIDX header; {path} begins with {header[:9]!r}. {_MAKE}."
            )
        _, version, code, num_sequences, num_bounds = HEADER.unpack(header)
        if version != 1 or code not in ITEM_TYPES:
            raise ValueError(
                f"an index must have version 1 and a token type in 1 to 8; {path} has {version} and {code}. {_MAKE}."
            )
        if num_sequences < 1 or num_bounds < 2:
            raise ValueError(f"an index must hold at least one document; {path} holds none. {_MAKE}.")
        # Per sequence a length (4 bytes) and an offset (8), per boundary 8; multimodal data add a byte a sequence.
        expected = HEADER.size + 12 * num_sequences + 8 * num_bounds
        if idx_size not in (expected, expected + num_sequences):
            raise ValueError(
                f"{path} must have {expected} bytes for its {num_sequences} sequences; it has {idx_size}: cut off, or "
                f"of another format. {_MAKE} anew."
            )
        (last_length,) = _read_at(file, "<i", HEADER.size + 4 * (num_sequences - 1))
        (last_offset,) = _read_at(file, "<q", HEADER.size + 12 * num_sequences - 8)
        (last_bound,) = _read_at(file, "<q", expected - 8)
    if last_bound != num_sequences:
        raise ValueError(
            f"the last document of {path} must end at its last sequence, {num_sequences}; it ends at {last_bound}. "
            f"{_MAKE} anew."
        )
    end = last_offset + last_length * ITEM_TYPES[code].itemsize
    if bin_size != end:
        raise ValueError(
            f"{prefix}.bin must have the {end} bytes that {path} describes; it has {bin_size}: the two are not of one "
            f"run, or one is cut off. {_MAKE} anew."
        )


def _read_at(file: Any, layout: str, offset: int) -> tuple[int, ...]:
    file.seek(offset)
    return struct.unpack(layout, file.read(struct.calcsize(layout)))


def _hint(prefix: str) -> str:
    """Say what to do about a prefix whose files are missing, naming the likely slip."""
    if prefix.endswith((".bin", ".idx")):
        return f"Leave the ending {prefix[-4:]} out."
    if os.path.isfile(prefix + "_text_document.idx"):
        return f"Did you mean {prefix}_text_document?"
    if os.path.isfile(prefix + ".bin"):
        return f"An unfinished run may have left it so. {_MAKE} anew."
    return f"{_MAKE}, or correct the path."
