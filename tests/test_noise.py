# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The noise against Random123's known answers, an independent model, and what independence demands."""

import pytest
import torch

import reference
from nemo_sr import noise16
from nemo_sr.noise import noise_key, philox4x32

KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_philox_gives_the_known_answers(counter, key, words):
    result = philox4x32(tuple(torch.tensor([c]) for c in counter), key)
    assert tuple(int(word) for word in result) == words


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
@pytest.mark.parametrize("name", ["decoder.layers.0.mlp.linear_fc1.weight", "", "größe"])
@pytest.mark.parametrize(("step", "stream"), [(1, 0), (2**32 + 5, 1), (2**31, 2)])
def test_noise_follows_the_specification(seed, name, step, stream):
    index = torch.tensor([0, 1, 7, 8, 9, 1000, 5, 5, 2**35 - 1, 2**35, 2**40 + 3])
    expected = [reference.noise(seed, step, stream, name, int(e)) for e in index]
    result = noise16(seed, step, stream, name, index)
    assert result.dtype == torch.int32
    assert result.tolist() == expected


def test_noise_does_not_depend_on_the_order_or_company_of_elements():
    index = torch.arange(10_000)
    whole = noise16(3, 7, 0, "w", index)
    order = torch.randperm(10_000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(noise16(3, 7, 0, "w", index[order]), whole[order])
    for cut in (1, 13, 9_999):
        assert torch.equal(torch.cat([noise16(3, 7, 0, "w", part) for part in (index[:cut], index[cut:])]), whole)


def test_noise_takes_the_step_modulo_2_to_32():
    index = torch.arange(64)
    assert torch.equal(noise16(0, 5, 0, "w", index), noise16(0, 2**32 + 5, 0, "w", index))


def test_noise_draws_nothing_from_torch():
    state = torch.get_rng_state()
    noise16(0, 1, 0, "w", torch.arange(100))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 1},
        {"name": "v"},
        {"step": 2},
        {"stream": 1},
        {"stream": 2},
        {"shift": 1},
        {"shift": 8},
        {"shift": 2**35},
    ],
    ids=str,
)
def test_different_identities_share_values_only_by_chance(other):
    # Equal values among 2**20 independent pairs are Poisson(16): 2 to 40 accepted, false alarm 2e-6.
    case = {"seed": 0, "step": 1, "stream": 0, "name": "w", "shift": 0} | other
    index = torch.arange(2**20)
    first = noise16(0, 1, 0, "w", index)
    second = noise16(case["seed"], case["step"], case["stream"], case["name"], index + case["shift"])
    assert 2 <= int((first == second).sum()) <= 40


def test_noise_is_uniform():
    # Pearson's chi-square over 256 bins of the high byte and of the low byte, 2**20 draws; 255 degrees of freedom
    # have standard deviation 22.6: six of them either way, false alarm below 1e-7.
    draws = noise16(11, 1, 0, "w", torch.arange(2**20))
    for byte in (draws >> 8, draws & 0xFF):
        counts = torch.bincount(byte, minlength=256).double()
        chi_square = float(((counts - 4096) ** 2 / 4096).sum())
        assert 255 - 6 * 22.6 < chi_square < 255 + 6 * 22.6


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0, 1, 0, "w", torch.tensor([-1])), ValueError, "index must not be negative; got -1"),
        ((0, 1, 0, "w", torch.tensor([1.0])), TypeError, "index must be an int64 tensor"),
        ((0, 1, 0, "w", torch.zeros(2, 2, dtype=torch.int64)), TypeError, "shape \\(2, 2\\)"),
        ((0, 1, 0, "w", [1]), TypeError, "got list"),
        ((-1, 1, 0, "w", torch.tensor([0])), ValueError, "seed must be in"),
        ((2**64, 1, 0, "w", torch.tensor([0])), ValueError, "seed must be in"),
        ((0.0, 1, 0, "w", torch.tensor([0])), TypeError, "seed must be an int"),
        ((0, -1, 0, "w", torch.tensor([0])), ValueError, "step must not be negative"),
        ((0, 1.0, 0, "w", torch.tensor([0])), TypeError, "step must be an int"),
        ((0, 1, 3, "w", torch.tensor([0])), ValueError, "stream must be"),
        ((0, 1, 0, b"w", torch.tensor([0])), TypeError, "name must be a str"),
    ],
    ids=str,
)
def test_bad_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        noise16(*arguments)


def test_empty_index():
    assert noise16(0, 1, 0, "w", torch.empty(0, dtype=torch.int64)).shape == (0,)


def test_key_depends_on_seed_and_name():
    assert len({noise_key(seed, name) for seed in (0, 1, 256) for name in ("a", "b", "ab")}) == 9
