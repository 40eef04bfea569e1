# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What ranks see of the rounding of a model whose weights and gradients are defined as a whole; the same by hand."""

import math

import numpy as np
import torch

import nemo_sr

STEPS = 10
EVERYTHING, FEW = 10**6, 50
LR, BETAS, EPS, DECAY = 3e-3, (0.9, 0.95), 1e-8, 0.1


def watched(gpt, layout, samples):
    """The steps of megatron_cases.injected, each with a report."""
    from nemo_sr.training.rounding_probe import RoundingProbe

    model = gpt.build_model(**layout)
    gpt.set_weights(model)
    optimizer = gpt.build_optimizer(model)
    probe = RoundingProbe(optimizer.chained_optimizers, samples=samples, followed=samples)
    reports = []
    for step in range(STEPS):
        probe.watch(step + 1)
        gpt.inject_gradients(model, step)
        assert optimizer.step()[0]
        sums, shortfall = probe.collect()
        reports.append({"table": sums.table.tolist(), "shortfall": shortfall, "metrics": sums.metrics()})
    return {"digest": gpt.digest(gpt.gathered(model, optimizer)), "reports": reports}


def by_hand(gpt, shapes):
    """Return tables and shortfalls of the same steps, from the whole model in NumPy and torch's own cast to BF16."""
    params = {name: torch.nn.Parameter(gpt.whole_tensor(name, shape, "weight")) for name, shape in shapes.items()}
    optimizer = nemo_sr.AdamWSR(
        params.items(), lr=LR, betas=BETAS, weight_decay=DECAY, seed=11, exp_avg_rounding="stochastic"
    )
    exact = {name: np.zeros(param.numel(), np.float32) for name, param in params.items()}
    nearest = {name: np.zeros(param.numel(), np.float32) for name, param in params.items()}
    reports = []
    for step in range(STEPS):
        for name, param in params.items():
            param.grad = gpt.whole_tensor(name, param.shape, "gradient", step)
        norm = math.sqrt(sum(param.grad.double().square().sum().item() for param in params.values()))
        scale = np.float32(min(1.0, 1.0 / (norm + 1e-6)))
        computed = {name: _step(optimizer, param, scale, step + 1) for name, param in params.items()}
        optimizer.grad_scale = float(min(1.0, 1.0 / (norm + 1e-6)))
        optimizer.step()
        table, short, count = np.zeros((6, 10)), 0.0, 0
        for name, param in params.items():
            table[_group(name)] += _row(*computed[name][:4], _numpy(param))
            added = computed[name][4]
            exact[name] = exact[name] * np.float32(BETAS[1]) + added
            nearest[name] = _nearest(nearest[name] * np.float32(BETAS[1]) + added)
            a, b = exact[name].astype(np.float64), nearest[name].astype(np.float64)
            larger = np.maximum(a, b)
            short += ((a - b)[larger > 0] / larger[larger > 0]).sum()
            count += (larger > 0).sum()
        reports.append((table, short / count))
    return reports


def _step(optimizer, param, scale, step):
    """Return old and exact weight, old and exact second moment, and what is added to the latter."""
    f = np.float32
    state = optimizer.state.get(param)
    m, v = (np.zeros(param.numel(), f),) * 2 if not state else (_numpy(state[k]) for k in ("exp_avg", "exp_avg_sq"))
    w, g = _numpy(param), _numpy(param.grad) * scale
    b1, b2 = BETAS
    m = m * f(b1) + g * f(1 - b1)
    added = (g * g) * f(1 - b2)
    new_v = v * f(b2) + added
    d = np.sqrt(new_v) * f(1 / math.sqrt(1 - b2**step)) + f(EPS)
    return w, w * f(1 - LR * DECAY) - (m / d) * f(LR / (1 - b1**step)), v, new_v, added


def _row(old, exact, old_v, exact_v, new):
    update, error = exact.astype(np.float64) - old, new.astype(np.float64) - exact
    _, exponent = np.frexp(np.maximum(np.abs(old), np.abs(exact)))
    ulp = np.ldexp(1.0, exponent - 8)
    return np.array(
        [
            old.size,
            ((exact != old) & (_nearest(exact) == old)).sum(),
            (new != old).sum(),
            (np.abs(update) / ulp).sum(),
            (error**2).sum(),
            (update**2).sum(),
            ((exact_v != old_v) & (_nearest(exact_v) == old_v)).sum(),
            (error / ulp * np.sign(update)).sum(),
            (error / ulp * np.sign(exact)).sum(),
            ((error / ulp) ** 2).sum(),
        ]
    )


def _group(name):
    if "layer_norm" in name or "layernorm" in name:
        return 3
    return {"embedding": 0, "self_attention": 1, "mlp": 2}[name.split(".")[3 if name.startswith("decoder") else 0]]


def _numpy(tensor):
    return tensor.detach().float().numpy().flatten()


def _nearest(values):
    return torch.from_numpy(values).bfloat16().float().numpy()
