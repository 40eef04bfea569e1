# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Makes docs/noise_vectors.json from the independent model in reference.py. Usage: python tests/make_vectors.py."""

import itertools
import json
from pathlib import Path

import numpy as np

import reference

TARGET = Path(__file__).parent.parent / "docs" / "noise_vectors.json"
FINITE = [0x0000, 0x8000, 0x0001, 0x3F80, 0xBF80, 0x7F7F, 0xFF7F, 0x3C23, 0xB8D1]
SPECIAL = [0x7F80, 0xFF80, 0x7FC0]


def noise_vectors():
    seeds = [0, 1, 1234, 2**64 - 1]
    names = ["w", "decoder.layers.0.mlp.linear_fc1.weight", "größe"]
    indices = [0, 1, 2, 7, 8, 4095, 2**32, 2**35 - 1, 2**35, 2**40 + 5]
    for (seed, name), (step, stream) in itertools.product(
        itertools.product(seeds, names), [(1, 0), (1, 1), (1, 2), (2**32 - 1, 0), (2**32 + 1, 2)]
    ):
        for e in indices:
            noise = reference.noise(seed, step, stream, name, e)
            yield {"seed": str(seed), "name": name, "step": step, "stream": stream, "index": e, "noise": f"{noise:04x}"}


def step_vectors():
    rng = np.random.default_rng(0)
    hyperparameters = [
        {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "wd": 1e-2, "t": 1},
        {"lr": 7e-4, "betas": (0.9, 0.95), "eps": 1e-8, "wd": 0.1, "t": 1000, "scale": 0.37},
        {"lr": 3e-3, "betas": (0.99, 0.9999), "eps": 1e-6, "wd": 0.3, "t": 2**31 + 3, "maximize": True},
    ]
    for case, roundings in itertools.product(hyperparameters, [("nearest", "stochastic"), ("stochastic", "nearest")]):
        ordinary = [(rng.standard_normal(24) * s).astype(np.float32).view(np.uint32) >> 16 for s in (0.02, 1e-3, 1e-3)]
        second = np.abs(rng.standard_normal(24) * 1e-6).astype(np.float32).view(np.uint32) >> 16
        extra = rng.choice(FINITE + SPECIAL, (3, 24)).astype(np.uint32)
        extra_v = rng.choice([*FINITE[::2], 0x7F80, 0x7FC0], 24).astype(np.uint32)
        columns = [np.concatenate(pair) for pair in zip([*ordinary, second], [*extra, extra_v], strict=True)]
        yield step_vector(case, roundings, columns, seed=2**63 + 9, name="decoder.final_layernorm.weight")


def step_vector(case, roundings, columns, seed, name):
    values = reference.step_float32(*[reference.from_bf16(c) for c in columns], **case)
    after, float32 = [], []
    for stream, (value, rounding) in enumerate(zip(values, ("stochastic", *roundings), strict=True)):
        bits = reference.bits(value).tolist()
        float32.append(["nan" if np.isnan(x) else f"{b:08x}" for x, b in zip(value, bits, strict=True)])
        if rounding == "nearest":
            after.append([f"{reference.nearest(b):04x}" for b in bits])
        else:
            noise = [reference.noise(seed, case["t"], stream, name, e) for e in range(len(bits))]
            after.append([f"{reference.stochastic(b, n):04x}" for b, n in zip(bits, noise, strict=True)])
    states = ("weight", "exp_avg", "exp_avg_sq")
    before = [[f"{b:04x}" for b in column.tolist()] for column in columns]
    return {
        "seed": str(seed),
        "name": name,
        "step": case["t"],
        "lr": case["lr"],
        "betas": list(case["betas"]),
        "eps": case["eps"],
        "weight_decay": case["wd"],
        "grad_scale": case.get("scale", 1.0),
        "maximize": case.get("maximize", False),
        "exp_avg_rounding": roundings[0],
        "exp_avg_sq_rounding": roundings[1],
        "before": dict(zip(("weight", "grad", "exp_avg", "exp_avg_sq"), before, strict=True)),
        "float32": dict(zip(states, float32, strict=True)),
        "after": dict(zip(states, after, strict=True)),
    }


def vectors():
    return {"noise_version": 1, "noise": list(noise_vectors()), "steps": list(step_vectors())}


if __name__ == "__main__":
    TARGET.write_text(json.dumps(vectors(), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
