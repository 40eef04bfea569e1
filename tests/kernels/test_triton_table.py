# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The tables that the Triton kernel reads, against ShardLayout.index."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_sr import ShardLayout
from nemo_sr.kernels import triton_table
from nemo_sr.kernels.triton_table import CHUNK, chunk_table, piece_table, pieces_of, rows_of


def indices_of(rows):
    place = torch.arange(rows.numel) + rows.position
    return rows.origin + place // rows.length * rows.distance + place % rows.length


@st.composite
def layouts(draw):
    whole = draw(st.lists(st.integers(1, 24), max_size=4))
    block = [draw(st.integers(0, size)) for size in whole]
    offset = [draw(st.integers(0, size - b)) for size, b in zip(whole, block, strict=True)]
    numel = torch.Size(block).numel()
    start = draw(st.integers(0, numel))
    return ShardLayout(tuple(whole), tuple(offset), tuple(block), start, draw(st.integers(start, numel)))


@pytest.mark.parametrize("longest", [triton_table.LONGEST_ROW, 5])
def test_rows_name_the_elements_of_a_layout(longest, monkeypatch):
    monkeypatch.setattr(triton_table, "LONGEST_ROW", longest)

    @settings(max_examples=300, deadline=None, database=None, derandomize=True)
    @given(layouts())
    def check(layout):
        runs = list(rows_of(layout))
        found = torch.cat([torch.empty(0, dtype=torch.int64), *map(indices_of, runs)])
        assert torch.equal(found, layout.index())
        assert all(rows.numel for rows in runs)
        assert all(rows.length <= longest for rows in runs if rows.length != rows.distance)

    check()


def test_a_block_of_columns_is_one_run():
    assert len(list(rows_of(ShardLayout((64, 512), (0, 128), (64, 256), 3, 64 * 256)))) == 1
    assert len(list(rows_of(ShardLayout((8, 64, 512), (2, 0, 128), (4, 64, 256), 3, 64 * 256)))) == 1


@settings(max_examples=300, deadline=None, database=None, derandomize=True)
@given(
    st.lists(layouts(), min_size=1, max_size=2),
    st.lists(st.integers(0, 7), min_size=4, max_size=4) | st.integers(0, 7).map(lambda shift: [shift] * 4),
    st.sampled_from([(2, 2, 2, 2), (2, 4, 2, 2), (4, 4, 4, 4), (4, 2, 4, 4)]),
)
def test_pieces_cover_a_shard_and_keep_the_fast_paths_promises(shard, shifts, sizes):
    rounds = sizes[0] == 2
    misalignments = [shift * size % 16 for shift, size in zip(shifts, sizes, strict=True)]
    pieces = list(pieces_of(3, shard, misalignments, sizes, rounds=rounds))
    index = torch.cat([layout.index() for layout in shard])
    at = 0
    for piece in pieces:
        rows = piece.rows
        assert piece.shard == 3
        assert piece.begin == at
        at += rows.numel
        assert 0 <= rows.position < rows.length <= triton_table.LONGEST_ROW
        if rounds:
            assert torch.equal(indices_of(rows), index[piece.begin : at])
        if piece.fast:
            assert rows.numel % 8 == rows.length % 8 == rows.distance % 8 == 0
            assert not rounds or rows.origin % 8 == rows.position % 8 == 0
            assert all((m + piece.begin * s) % 16 == 0 for m, s in zip(misalignments, sizes, strict=True))
    assert at == index.numel()


def fast_share(layout, shifts=(0, 0, 0, 0)):
    pieces = list(pieces_of(0, [layout], [shift * 2 % 16 for shift in shifts], (2, 2, 2, 2), rounds=True))
    return [piece.rows.numel for piece in pieces if piece.fast], len(pieces)


def test_what_takes_the_fast_path():
    assert fast_share(ShardLayout.whole((64, 512))) == ([64 * 512], 1)
    assert fast_share(ShardLayout.whole((50257,))) == ([50256], 2)
    assert fast_share(ShardLayout((64, 512), (0, 128), (64, 256), 0, 64 * 256)) == ([64 * 256], 1)
    # A view that begins three elements into a flat buffer, and whose addresses do so too.
    assert fast_share(ShardLayout((1000,), (0,), (1000,), 3, 1000), (3, 3, 3, 3)) == ([992], 2)
    assert fast_share(ShardLayout((1000,), (0,), (1000,), 3, 1000)) == ([], 1)
    assert fast_share(ShardLayout.whole((1000,)), (0, 0, 4, 0)) == ([], 1)
    assert fast_share(ShardLayout.whole((7,))) == ([], 1)


def test_tables():
    layout = ShardLayout.whole((3 * CHUNK + 5,))
    key = 0xFEDCBA9876543210
    sizes = (2, 4, 2, 2)
    first = list(pieces_of(0, [layout], (0, 0, 0, 0), sizes, rounds=True))
    pieces = [*first, *pieces_of(1, [ShardLayout((16, 20), (0, 8), (16, 8), 0, 128)], (2, 0, 0, 0), sizes, rounds=True)]
    assert chunk_table(pieces).tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [2, 0]]
    assert chunk_table(pieces).dtype == torch.int32
    addresses = [(1 << 40, 2 << 40, 3 << 40, 4 << 40), ((1 << 40) + 2, 64, 96, 128)]
    table = piece_table(pieces, [key, 7], addresses, sizes)
    tail = 3 * CHUNK
    row = triton_table.LONGEST_ROW
    assert table.tolist() == [
        [1 << 40, 2 << 40, 3 << 40, 4 << 40, tail, key - (1 << 64), 0, 0, row, row, 1, 0],
        [
            *(a + tail * s for a, s in zip(addresses[0], sizes, strict=True)),
            5,
            key - (1 << 64),
            tail,
            0,
            row,
            row,
            0,
            0,
        ],
        [(1 << 40) + 2, 64, 96, 128, 128, 7, 8, 0, 8, 20, 0, 1],
    ]
