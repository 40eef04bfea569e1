# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""ShardLayout against slicing a tensor of indices."""

from math import prod

import pytest
import torch

from nemo_sr import ShardLayout

CASES = [
    ((), (), ()),
    ((5,), (0,), (5,)),
    ((5,), (2,), (3,)),
    ((6, 10), (0, 0), (6, 10)),
    ((6, 10), (2, 0), (3, 10)),
    ((6, 10), (0, 3), (6, 5)),
    ((6, 10), (1, 9), (4, 1)),
    ((4, 6, 10), (1, 2, 3), (2, 3, 4)),
    ((4, 6, 10), (1, 0, 3), (2, 6, 4)),
    ((4, 6, 10), (1, 2, 0), (1, 3, 10)),
    ((4, 1, 10), (0, 0, 5), (4, 1, 5)),
    ((3, 0), (0, 0), (3, 0)),
]


@pytest.mark.parametrize(("whole", "offset", "block"), CASES)
def test_indices_are_those_of_slicing(whole, offset, block):
    numbered = torch.arange(prod(whole)).view(whole)
    cut = numbered[tuple(slice(o, o + b) for o, b in zip(offset, block, strict=True))].reshape(-1)
    size = cut.numel()
    for start, stop in {(0, size), (0, size // 2), (size // 3, size), (size // 2, size // 2)}:
        layout = ShardLayout(whole, offset, block, start, stop)
        assert layout.numel == stop - start
        assert torch.equal(layout.index(), cut[start:stop])
        middle = layout.numel // 2
        assert torch.equal(torch.cat([layout.index(0, middle), layout.index(middle)]), cut[start:stop])


def test_indices_beyond_32_bits():
    layout = ShardLayout((2**20, 2**20), (2**20 - 1, 2**19), (1, 2**19), 2**19 - 2, 2**19)
    assert layout.index().tolist() == [2**40 - 2, 2**40 - 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((4, 4), (0,), (4, 4), 0, 16), "one length"),
        (((4, 4), (1, 0), (4, 4), 0, 16), "must lie in the parameter"),
        (((4, 4), (-1, 0), (4, 4), 0, 16), "must lie in the parameter"),
        (((4, 4), (0, 0), (4, 4), 0, 17), "start <= stop <= 16"),
        (((4, 4), (0, 0), (4, 4), 5, 4), "start=5, stop=4"),
    ],
)
def test_impossible_layouts_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        ShardLayout(*arguments)


def test_overlaps():
    left, right = ShardLayout((4, 8), (0, 0), (4, 4), 0, 16), ShardLayout((4, 8), (0, 4), (4, 4), 0, 16)
    assert not left.overlaps(right)
    assert left.overlaps(ShardLayout.whole((4, 8)))
    assert not ShardLayout((4, 8), (0, 0), (4, 4), 0, 7).overlaps(ShardLayout((4, 8), (0, 0), (4, 4), 7, 16))
    assert not left.overlaps(ShardLayout((4, 8), (0, 0), (4, 4), 3, 3))
