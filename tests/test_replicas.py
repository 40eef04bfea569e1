# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The hash that replicas are compared by, and what is said of those that differ."""

import pytest
import torch

from nemo_sr import replicas
from nemo_sr.replicas import describe_drift, hash_tensors

DTYPES = {torch.bfloat16: torch.int16, torch.float32: torch.int32, torch.int64: torch.int64, torch.uint8: torch.int8}


def values(numel, dtype):
    generator = torch.Generator().manual_seed(numel)
    return torch.randint(0, 256, (numel * dtype.itemsize,), generator=generator, dtype=torch.uint8).view(dtype)


@pytest.mark.parametrize("piece", [1, 3, 1 << 20])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_single_bit_counts_in_every_piece(dtype, piece, monkeypatch):
    monkeypatch.setattr(replicas, "_PIECE", piece)
    tensor = values(19, dtype)
    flipped = []
    for element in range(19):
        for bit in (0, 8 * dtype.itemsize - 1):
            other = tensor.clone()
            other.view(DTYPES[dtype])[element] ^= (-1 << bit) if bit == 8 * dtype.itemsize - 1 else 1 << bit
            flipped.append(other)
    hashes = hash_tensors([tensor, *flipped]).tolist()
    assert len(set(hashes)) == len(hashes)


@pytest.mark.parametrize("numel", [0, 1, 3, 4, 37, 40])
def test_the_hash_does_not_depend_on_where_the_bits_lie(numel):
    tensor = values(numel, torch.bfloat16)
    room = torch.zeros(numel + 8, dtype=torch.bfloat16)
    hashes = set()
    for offset in range(8):
        moved = room[offset : offset + numel].copy_(tensor)
        hashes.update(hash_tensors([moved, moved.clone()]).tolist())
        hashes.update(hash_tensors([values(1000, torch.bfloat16), moved])[1:].tolist())  # beside a longer one
    assert len(hashes) == 1
    transposed = values(40, torch.bfloat16).view(5, 8).t()
    assert torch.equal(hash_tensors([transposed]), hash_tensors([transposed.contiguous()]))


def test_two_flipped_signs_do_not_cancel():
    tensor = values(4000, torch.bfloat16)
    both = tensor.clone()
    both[[3, 2003]] *= -1
    assert len(set(hash_tensors([tensor, both, -tensor]).tolist())) == 3


def test_elements_that_change_places_change_the_hash():
    tensor = values(40, torch.bfloat16)
    swapped = tensor.clone()
    swapped[[0, 30]] = tensor[[30, 0]]
    assert len(set(hash_tensors([tensor, swapped, tensor.flip(0)]).tolist())) == 3


def test_the_few_are_named_as_those_that_differ():
    said = describe_drift([("a.weight", [0, 2, 4, 6], [5, 7, 7, 7]), ("b.bias", list(range(20)), [1] * 19 + [2])], 9)
    assert "2 of 9 weights differ: a.weight (rank 0 from rank 2, 4, 6), b.bias (rank 19 from rank 0, 1, 2" in said
    assert "6, 7 and 11 more)" in said
    assert "c10" not in describe_drift([(f"c{i}", [0, 1], [1, 2]) for i in range(11)], 11)
