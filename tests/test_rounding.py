# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Rounding: exhaustively over the noise, and every special value."""

import numpy as np
import pytest
import torch

import reference
from nemo_sr import round_stochastic
from nemo_sr.rounding import round_nearest

ALL_NOISE = torch.arange(65536, dtype=torch.int32)
ALL_HIGH = np.arange(65536, dtype=np.uint32)
LOW_HALVES = [0x0001, 0x1234, 0x7FFF, 0x8000, 0x8001, 0xFFFF]


def floats(bits):
    return torch.from_numpy(np.asarray(bits, dtype=np.uint32).view(np.float32).copy())


def halves(x):
    return x.view(torch.int16).numpy().view(np.uint16)


def assert_exact(rounding, high, low):
    """All 65,536 noise values: as many round up as the dropped fraction says."""
    result = halves(rounding(floats(np.full(65536, high << 16 | low)), ALL_NOISE))
    assert set(result.tolist()) <= {high, high + 1}
    assert int((result == high + 1).sum()) == low


def test_rounding_to_nearest_fails_the_exhaustive_test():
    with pytest.raises(AssertionError):
        assert_exact(lambda x, noise: round_nearest(x), 0x3F80, 0x1234)


@pytest.mark.parametrize("high", [sign << 15 | e << 7 | m for sign in (0, 1) for e in range(255) for m in (0x55,)])
def test_round_ups_over_all_noise_equal_the_dropped_fraction(high):
    for low in LOW_HALVES:
        assert_exact(round_stochastic, high, low)


@pytest.mark.parametrize("noise", [0, 1, 0x8000, 0xFFFF])
def test_every_bf16_value_is_a_fixed_point(noise):
    result = halves(round_stochastic(floats(ALL_HIGH << 16), torch.full((65536,), noise, dtype=torch.int32)))
    is_nan = (ALL_HIGH & 0x7FFF) > 0x7F80
    assert np.array_equal(result[~is_nan], ALL_HIGH[~is_nan])
    assert set(result[is_nan].tolist()) == {0x7FFF}
    nearest = halves(round_nearest(floats(ALL_HIGH << 16)))
    assert np.array_equal(nearest, result)


@pytest.mark.parametrize("noise", [0, 1, 0x7FFF, 0x8000, 0xFFFF])
@pytest.mark.parametrize("low", [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
def test_both_roundings_against_the_model_over_every_high_half(low, noise):
    x = (ALL_HIGH << 16) | low
    given = torch.full((65536,), noise, dtype=torch.int32)
    expected = [reference.stochastic(int(b), noise) for b in x]
    assert halves(round_stochastic(floats(x), given)).tolist() == expected
    assert halves(round_nearest(floats(x))).tolist() == [reference.nearest(int(b)) for b in x]


@pytest.mark.parametrize("bits", [0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0xFF800001, 0x7FC00000, 0xFFC00000])
def test_every_nan_is_written_as_7fff(bits):
    x = floats(np.full(65536, bits))
    assert set(halves(round_stochastic(x, ALL_NOISE)).tolist()) == {0x7FFF}
    assert set(halves(round_nearest(x)).tolist()) == {0x7FFF}


@pytest.mark.parametrize(("bits", "expected"), [(0x7F7FFFFF, 0x7F7F), (0xFF7F0001, 0xFF7F), (0x7F7F8000, 0x7F7F)])
def test_finite_values_above_the_largest_bf16_stay_finite(bits, expected):
    assert set(halves(round_stochastic(floats(np.full(65536, bits)), ALL_NOISE)).tolist()) == {expected}


def test_nearest_overflows_to_infinity():
    assert halves(round_nearest(floats([0x7F7F7FFF, 0x7F7F8000, 0xFF7FFFFF]))).tolist() == [0x7F7F, 0x7F80, 0xFF80]


def test_low_16_bits_of_the_noise_are_used():
    x = floats([0x3F801234] * 4)
    noise = torch.tensor([0x0F00, 0xF000, 0x10000 + 0xF000, -0x10000 + 0xF000], dtype=torch.int32)
    assert halves(round_stochastic(x, noise)).tolist() == [0x3F80, 0x3F81, 0x3F81, 0x3F81]


def test_any_shape_and_stride():
    x = torch.randn(6, 10)
    noise = torch.randint(0, 65536, (6, 10), dtype=torch.int32)
    flat = round_stochastic(x.reshape(-1), noise.reshape(-1)).view(6, 10)
    assert torch.equal(round_stochastic(x, noise), flat)
    assert torch.equal(round_stochastic(x.t(), noise.t()), flat.t())


@pytest.mark.parametrize(
    ("x", "noise", "error", "message"),
    [
        (torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.int32), TypeError, "x must be a float32"),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int64), TypeError, "noise must be an int32"),
        (torch.zeros(2), torch.zeros(3, dtype=torch.int32), ValueError, "one shape"),
        ([1.0], torch.zeros(1, dtype=torch.int32), TypeError, "got list"),
    ],
)
def test_bad_arguments_are_refused(x, noise, error, message):
    with pytest.raises(error, match=message):
        round_stochastic(x, noise)
