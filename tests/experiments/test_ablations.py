# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The ablations: their ways to write the weight, and their quick forms on a text of a few tokens."""

import numpy as np
import pytest
import torch
from torch import nn

from nemo_sr import AdamWSR
from nemo_sr.experiments.ablations import accumulation, loop, noise_sharing, second_moment, weight_decay, weight_write
from nemo_sr.experiments.ablations.writing import WRITES, AdamWWritten
from nemo_sr.experiments.frame.command import run

EXPERIMENTS = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (accumulation, noise_sharing, second_moment, weight_decay, weight_write)
}


def train(make, steps=8, scale=1e-2):
    generator = torch.Generator().manual_seed(0)
    weight = nn.Parameter((torch.randn(64, 128, generator=generator) * 0.02).bfloat16())
    optimizer = make([("w", weight)], lr=1e-4, seed=5)
    for _ in range(steps):
        weight.grad = (torch.randn(64, 128, generator=generator) * scale).bfloat16()
        optimizer.step()
    return weight.detach().float(), optimizer


def written(write):
    return lambda params, **options: AdamWWritten(params, write=write, **options)


def test_all_sixteen_bits_of_noise_are_adamwsr(monkeypatch):
    monkeypatch.setitem(WRITES, "bits_16", 6)
    own, _ = train(AdamWSR)
    assert torch.equal(own, train(written("bits_16"))[0])
    assert torch.equal(own, train(written("stochastic"))[0])
    assert not torch.equal(own, train(written("bits_4"))[0])


def test_compensation_follows_the_master_copy_where_nearest_stands_still():
    start, _ = train(AdamWSR, steps=0)
    exact, optimizer = train(written("fp32"), steps=60)
    (master, *_) = next(iter(optimizer._kept.values()))
    assert torch.equal(exact.flatten(), master.bfloat16().float())
    moved = (exact - start).norm()
    compensated, nearest = (train(written(write), steps=60)[0] for write in ("compensated", "nearest"))
    assert (compensated - exact).norm() < 0.1 * moved
    assert (nearest - exact).norm() > 0.3 * moved


@pytest.mark.parametrize("num_bits", [1, 2, 4, 8])
def test_few_bits_pull_weights_toward_zero_by_their_mean_error(monkeypatch, num_bits):
    monkeypatch.setitem(WRITES, f"bits_{num_bits}", 6)
    # Gradients of zero and a decay below an ulp: each write has the error (2^-D - 2^-N)/2 ulp of D = 16 dropped bits.
    weight = nn.Parameter(torch.full((1 << 16,), 1.5, dtype=torch.bfloat16))
    exact = 1.5 - 1.5e-4
    optimizer = AdamWWritten([("w", weight)], write=f"bits_{num_bits}", lr=1e-3, weight_decay=0.1)
    weight.grad = torch.zeros_like(weight)
    optimizer.step()
    # The exact weight lies 0.0192 ulp below 1.5: with few bits the highest noise that does not carry decides.
    ulp = 2.0**-7
    kept = 1 - (1.5 - exact) / ulp
    carries = sum(kept + noise / 2**num_bits >= 1 for noise in range(2**num_bits)) / 2**num_bits
    expected = 1.5 - ulp * (1 - carries)
    error = 4 * ulp * max(carries * (1 - carries), 1e-6) ** 0.5 / 256
    assert weight.double().mean().item() == pytest.approx(expected, abs=error)


def test_an_unknown_write_is_refused():
    with pytest.raises(ValueError, match="write must be one of fp32, stochastic"):
        AdamWWritten([("w", nn.Parameter(torch.zeros(2, dtype=torch.bfloat16)))], write="truncated")


@pytest.fixture
def few_tokens(tmp_path, monkeypatch):
    generator = np.random.default_rng(0)
    generator.integers(0, 60, size=40_000).astype(np.uint16).tofile(tmp_path / "tokens.bin")
    monkeypatch.setattr(loop, "_prefix", lambda quick: tmp_path / "tokens")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_quick_forms_pass_their_required_checks(few_tokens, tmp_path, name):
    report, _ = run(EXPERIMENTS[name], tmp_path / "reports", quick=True)
    assert report.failed == []
    assert (tmp_path / "reports" / name / "index.md").is_file()
