# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Every byte of a .bin/.idx pair checked, and some of its documents shown.

    python scripts/verify_mmap.py PREFIX [--vocab V.json] [--samples N]

``indexed.check_prefix`` looks at the ends of the files and takes milliseconds; this reads them whole, through
memory maps, with NumPy alone. It exits with 1 and names the first bad byte where a file is not what it should be.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nemo_sr.data.indexed import HEADER, ITEM_TYPES, MAGIC
from nemo_sr.data.progress import complain, say
from nemo_sr.data.vocabulary import MERGES_NAME, VOCAB_NAME, Vocabulary, read_vocab_size

_CHUNK = 1 << 24  # ids looked at together


class BadByteError(ValueError):
    """A file is not what it should be from a certain byte on.

    Args:
        path: The file.
        offset: Its first bad byte, counted from 0.
        problem: What should be there and what is.
    """

    def __init__(self, path: str, offset: int, problem: str) -> None:
        super().__init__(f"{path}, byte {offset}: {problem}")
        self.offset = offset


@dataclass(frozen=True)
class Contents:
    """A checked pair of files.

    Attributes:
        tokens: All ids, one document after the other. Shape (num_tokens,).
        lengths: Tokens of each sequence. Shape (num_sequences,), int32.
        bounds: Sequences before each document and, last, all. Shape (num_documents + 1,), int64.
        largest: Largest id.
    """

    tokens: NDArray[Any]
    lengths: NDArray[np.int32]
    bounds: NDArray[np.int64]
    largest: int

    def document(self, number: int) -> NDArray[Any]:
        """Return the ids of a document."""
        first, last = self.bounds[number], self.bounds[number + 1]
        start = int(self.lengths[:first].sum(dtype=np.int64))
        return self.tokens[start : start + int(self.lengths[first:last].sum(dtype=np.int64))]


def verify(prefix: Path | str, *, vocab_size: int | None = None, end_of_text: int | None = None) -> Contents:
    """Read PREFIX.bin and PREFIX.idx whole and check every field of them.

    Args:
        prefix: Path of the two files without their endings.
        vocab_size: Number of different ids, if ids are to be checked against it.
        end_of_text: Id that must end every document, if that is to be checked.

    Returns:
        What the files hold, mapped into memory.

    Raises:
        FileNotFoundError: a file is missing.
        BadByteError: naming the first bad byte.
    """
    idx, bin_ = f"{prefix}.idx", f"{prefix}.bin"
    for path in (idx, bin_):
        if not os.path.isfile(path):
            raise FileNotFoundError(f"PREFIX.bin and PREFIX.idx must exist; {path} is not there. Check PREFIX.")
    dtype, lengths, bounds = _verify_index(idx)
    num_tokens = int(lengths.sum(dtype=np.int64))
    size = os.path.getsize(bin_)
    if size != num_tokens * dtype.itemsize:
        raise BadByteError(
            bin_,
            min(size, num_tokens * dtype.itemsize),
            f"the {num_tokens} tokens of {idx} take {num_tokens * dtype.itemsize} bytes; the file has {size}",
        )
    tokens = np.memmap(bin_, dtype=dtype, mode="r")
    largest = _verify_ids(bin_, tokens, vocab_size)
    if end_of_text is not None:
        ends = np.cumsum(np.add.reduceat(lengths, bounds[:-1], dtype=np.int64)) - 1
        bad = np.flatnonzero(tokens[ends] != end_of_text)
        if bad.size:
            end = int(ends[bad[0]])
            problem = f"document {bad[0]} must end with the end of text, {end_of_text}; it ends with {tokens[end]}"
            raise BadByteError(bin_, end * dtype.itemsize, problem)
    return Contents(tokens, lengths, bounds, largest)


def _verify_index(path: str) -> tuple[np.dtype[Any], NDArray[np.int32], NDArray[np.int64]]:
    data = np.memmap(path, dtype=np.uint8, mode="r") if os.path.getsize(path) else np.empty(0, np.uint8)
    start = data[: len(MAGIC)].tobytes()
    if start != MAGIC:
        offset = next((i for i, (a, b) in enumerate(zip(start, MAGIC, strict=False)) if a != b), len(start))
        found = f"has 0x{start[offset]:02x}" if offset < len(start) else "ends"
        raise BadByteError(path, offset, f"an index begins with {MAGIC!r}; the file {found} there: no .idx file")
    if data.size < HEADER.size:
        raise BadByteError(path, data.size, f"the header takes {HEADER.size} bytes; the file ends there: cut off")
    _, version, code, num_sequences, num_bounds = HEADER.unpack(data[: HEADER.size].tobytes())
    if version != 1:
        raise BadByteError(path, 9, f"the version must be 1; it is {version}")
    if code not in ITEM_TYPES or ITEM_TYPES[code].kind == "f":
        raise BadByteError(path, 17, f"the type of ids must be one of {_codes()}; it is {code}")
    if num_sequences < 1:
        raise BadByteError(path, 18, "there must be at least one sequence; there is none")
    if not 2 <= num_bounds <= num_sequences + 1:
        raise BadByteError(
            path, 26, f"{num_sequences} sequences have 2 to {num_sequences + 1} bounds; there are {num_bounds}"
        )
    at_offsets = HEADER.size + 4 * num_sequences
    at_bounds = at_offsets + 8 * num_sequences
    expected = at_bounds + 8 * num_bounds
    if data.size not in (expected, expected + num_sequences):  # multimodal data add a byte a sequence
        raise BadByteError(
            path,
            min(data.size, expected),
            f"{num_sequences} sequences and {num_bounds} bounds take {expected} bytes; the file has {data.size}",
        )
    lengths = np.frombuffer(data, np.int32, num_sequences, HEADER.size)
    offsets = np.frombuffer(data, np.int64, num_sequences, at_offsets)
    bounds = np.frombuffer(data, np.int64, num_bounds, at_bounds)
    dtype = ITEM_TYPES[code]
    for bad in np.flatnonzero(lengths < 1)[:1]:
        raise BadByteError(
            path, HEADER.size + 4 * bad, f"sequence {bad} must hold a token; its length is {lengths[bad]}"
        )
    right = np.zeros(num_sequences, np.int64)
    np.cumsum(lengths[:-1], out=right[1:], dtype=np.int64)
    right *= dtype.itemsize
    for bad in np.flatnonzero(offsets != right)[:1]:
        problem = (
            f"sequence {bad} begins at byte {right[bad]}, where the one before ends; the index says {offsets[bad]}"
        )
        raise BadByteError(path, at_offsets + 8 * bad, problem)
    if bounds[0] != 0:
        raise BadByteError(path, at_bounds, f"the first document begins at sequence 0; the index says {bounds[0]}")
    for bad in np.flatnonzero(np.diff(bounds) < 1)[:1]:
        problem = f"document {bad} must hold a sequence; it begins at {bounds[bad]} and ends at {bounds[bad + 1]}"
        raise BadByteError(path, at_bounds + 8 * (bad + 1), problem)
    if bounds[-1] != num_sequences:
        problem = f"the last document ends at sequence {num_sequences}; the index says {bounds[-1]}"
        raise BadByteError(path, expected - 8, problem)
    return dtype, lengths, bounds


def _verify_ids(path: str, tokens: NDArray[Any], vocab_size: int | None) -> int:
    largest = 0
    for start in range(0, tokens.size, _CHUNK):
        chunk = tokens[start : start + _CHUNK]
        low, high = int(chunk.min()), int(chunk.max())
        if low < 0 or (vocab_size is not None and high >= vocab_size):
            limit = np.inf if vocab_size is None else vocab_size
            bad = start + int(np.flatnonzero((chunk < 0) | (chunk >= limit))[0])
            what = "ids are not negative" if vocab_size is None else f"the vocabulary has the ids 0 to {vocab_size - 1}"
            raise BadByteError(path, bad * tokens.itemsize, f"{what}; token {bad} is {tokens[bad]}")
        largest = max(largest, high)
    return largest


def _codes() -> str:
    return ", ".join(f"{code} ({dtype})" for code, dtype in ITEM_TYPES.items() if dtype.kind != "f")


def _show(contents: Contents, vocabulary: Vocabulary | None, number: int) -> None:
    ids = contents.document(number)
    say(f"document {number}, {ids.size} tokens: {' '.join(map(str, ids[:12]))} ... {' '.join(map(str, ids[-3:]))}")
    if vocabulary is not None:
        from nemo_sr.data.tokenizer import build_tokenizer

        say("    " + repr(build_tokenizer(vocabulary).decode(ids[:40].tolist(), skip_special_tokens=False))[:110])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        Exit code: 0 all is well, 1 a file is missing or bad, 2 the command line is.
    """
    parser = argparse.ArgumentParser(description="Check every byte of PREFIX.bin and PREFIX.idx, and show samples.")
    parser.add_argument("prefix", metavar="PREFIX", help="path of the two files without .bin and .idx")
    parser.add_argument(
        "--vocab",
        type=Path,
        metavar="V.json",
        help=f"vocabulary that ids must be in (default: {VOCAB_NAME} beside PREFIX)",
    )
    parser.add_argument("--samples", type=int, default=3, metavar="N", help="documents to show (default: %(default)s)")
    given = parser.parse_args(argv)
    beside = Path(given.prefix).parent
    vocab = given.vocab or (beside / VOCAB_NAME if (beside / VOCAB_NAME).exists() else None)
    try:
        vocab_size = None if vocab is None else read_vocab_size(vocab)
        merges = None if vocab is None else vocab.parent / MERGES_NAME
        vocabulary = Vocabulary.read(vocab, merges) if vocab and merges and merges.exists() else None
        contents = verify(given.prefix, vocab_size=vocab_size)
    except (OSError, ValueError) as error:
        complain(str(error))
        return 1
    num_documents = contents.bounds.size - 1
    of = "no vocabulary to check them against" if vocab_size is None else f"all below the vocabulary's {vocab_size}"
    say(
        f"{given.prefix}: {num_documents} documents, {contents.tokens.size} tokens of type {contents.tokens.dtype}, "
        f"ids up to {contents.largest}, {of}"
    )
    if vocabulary is not None:
        last = contents.lengths.cumsum(dtype=np.int64)[contents.bounds[1:] - 1] - 1
        num_ended = int((contents.tokens[last] == vocabulary.end_of_text).sum())
        say(f"{num_ended} of {num_documents} documents end with the end of text, {vocabulary.end_of_text}")
    for number in np.linspace(0, num_documents - 1, max(0, min(given.samples, num_documents)), dtype=int):
        _show(contents, vocabulary, int(number))
    return 0


if __name__ == "__main__":
    sys.exit(main())
