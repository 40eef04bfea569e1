# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Samples of weights: one element of each cell, the same ones however the parameter is cut, others at every step."""

import pytest
import torch

from nemo_sr.layout import ShardLayout
from nemo_sr.noise import noise_key
from nemo_sr.sampling import ShardSampler

SHAPE = (24, 35)
KEY = noise_key(5, "w")


def drawn(layouts, num_cells=100, step=3, key=KEY):
    """Return {element of the whole: count} of what a shard of several layouts draws."""
    draw = ShardSampler([(key, layouts)], num_cells, "cpu").draw(step)
    index = torch.cat([layout.index() for layout in layouts])
    found = [(int(index[p]), int(c)) for p, c in zip(draw.positions, draw.counts, strict=True) if c]
    assert len(dict(found)) == len(found)
    return dict(found)


def block(rows, columns, start=0, stop=None):
    shape = (rows.stop - rows.start, columns.stop - columns.start)
    return ShardLayout(
        SHAPE, (rows.start, columns.start), shape, start=start, stop=shape[0] * shape[1] if stop is None else stop
    )


ALL = slice(0, 24), slice(0, 35)
CUTS = {
    "rows": [[block(slice(0, 13), ALL[1])], [block(slice(13, 24), ALL[1])]],
    "columns": [[block(ALL[0], slice(0, 20))], [block(ALL[0], slice(20, 35))]],
    "flat": [[block(*ALL, start=0, stop=211)], [block(*ALL, start=211, stop=212)], [block(*ALL, start=212)]],
    "columns, then flat": [
        [block(ALL[0], slice(0, 20), stop=77)],
        [block(ALL[0], slice(0, 20), start=77), block(ALL[0], slice(20, 22))],
        [block(ALL[0], slice(22, 35))],
    ],
    "pieces": [
        [block(slice(0, 5), ALL[1]), block(slice(12, 17), ALL[1])],
        [block(slice(5, 12), ALL[1]), block(slice(17, 24), ALL[1])],
    ],
}


@pytest.mark.parametrize("num_cells", [1, 7, 100, 840, 10**6])
def test_each_cell_has_one_element_that_stands_for_all(num_cells):
    found = drawn((ShardLayout.whole(SHAPE),), num_cells)
    length = -(-840 // num_cells)
    assert [element // length for element in found] == list(range(-(-840 // length)))
    assert list(found.values()) == [min(length, 840 - start) for start in range(0, 840, length)]


@pytest.mark.parametrize("cut", CUTS)
def test_shards_together_draw_what_the_whole_draws(cut):
    parts = [drawn(tuple(layouts)) for layouts in CUTS[cut]]
    together = {element: count for part in parts for element, count in part.items()}
    assert len(together) == sum(map(len, parts))
    assert together == drawn((ShardLayout.whole(SHAPE),))


def test_a_draw_follows_from_step_name_and_element_alone():
    whole = (ShardLayout.whole(SHAPE),)
    before = torch.random.get_rng_state()
    first = drawn(whole)
    torch.rand(3)
    again = drawn(whole)
    torch.random.set_rng_state(before)
    assert first == again
    assert torch.equal(torch.random.get_rng_state(), before)
    for other in (drawn(whole, step=4), drawn(whole, key=noise_key(5, "v"))):
        shared = len(first.keys() & other.keys())
        assert 2 <= shared <= 27  # of 94 cells of nine elements each: binomial, 10.4 +- 3; false alarm 1e-6


def test_several_shards_are_drawn_one_after_the_other():
    shards = [(KEY, (ShardLayout.whole(SHAPE),)), (noise_key(5, "v"), (ShardLayout.whole((3,)),)), (KEY, ())]
    draw = ShardSampler(shards, 100, "cpu").draw(3)
    assert draw.sizes == [94, 3, 0]
    taken = draw.take([torch.arange(840), torch.arange(1000, 1003), torch.empty(0, dtype=torch.int64)])
    assert taken.tolist() == [*drawn((ShardLayout.whole(SHAPE),)), 1000, 1001, 1002]
    assert ShardSampler([], 100, "cpu").draw(3).counts.tolist() == []
