# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Which properties of a BF16 optimizer hold, for AdamWSR and for public ones side by side, as a Markdown table.

    pip install torchao heavyball adv_optm torch-optimi     (those that are missing are left out)
    python benchmarks/correctness.py

A cell is "yes", or what was measured instead.
Every optimizer runs in eager mode; compiling does not change its rounding.
"""

import argparse
import copy
import math
import os
import warnings

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # read when torch is imported

import torch
from peers import find
from torch import nn

from nemo_sr import AdamWSR, ShardLayout

SHAPE = (64, 128)
STEPS = 10


def optimizers():
    """Return {name: make(named_params, lr, betas, weight_decay)} for those that are installed."""
    found = {
        "nemo_sr AdamWSR": lambda params, **o: AdamWSR(params, **o),
        "torch AdamW (BF16)": lambda params, **o: torch.optim.AdamW(params, **o),
    }
    if torchao := find("torchao.optim"):
        found["torchao _AdamW SR"] = lambda params, **o: torchao._AdamW(
            unnamed(params), bf16_stochastic_round=True, **o
        )
    if heavyball := find("heavyball"):
        found["HeavyBall AdamW (BF16 state)"] = lambda params, **o: heavyball.AdamW(
            unnamed(params), storage_dtype="bfloat16", compile_step=False, **o
        )
    if adv_optm := find("adv_optm"):
        found["adv_optm AdamW_adv SR"] = lambda params, **o: adv_optm.AdamW_adv(
            unnamed(params), stochastic_rounding=True, **o
        )
    if optimi := find("optimi"):
        found["optimi AdamW (Kahan)"] = lambda params, **o: optimi.AdamW(unnamed(params), kahan_sum=True, **o)
    return found


def unnamed(params):
    """Drop the names, for optimizers that do not take them."""
    return [param for _, param in params]


def initial():
    """Return the same BF16 weights each time."""
    return (torch.randn(SHAPE, generator=torch.Generator().manual_seed(0)) * 0.02).bfloat16()


def gradient(step):
    """Return the same BF16 gradient for a step each time."""
    return (torch.randn(SHAPE, generator=torch.Generator().manual_seed(1 + step)) * 1e-2).bfloat16()


def run(make, *, rows=slice(None), disturb=None, resume=False, neighbour=False):
    """Train some rows of the weights as one rank of a sharded run does, with the generator that every rank has."""
    torch.manual_seed(7)
    param = nn.Parameter(initial()[rows].clone())
    named = [("w", param)]
    other = nn.Parameter(torch.ones(999).bfloat16())
    optimizer = make(([("other", other)] if neighbour else []) + named, lr=1e-3, betas=(0.9, 0.999), weight_decay=0.01)
    if isinstance(optimizer, AdamWSR):  # the others have no such notion
        begin = rows.indices(SHAPE[0])[0]
        optimizer.bind(param, "w", ShardLayout(SHAPE, (begin, 0), tuple(param.shape), 0, param.numel()))
    for step in range(STEPS):
        if disturb:
            disturb()
        if resume and step == STEPS // 2:
            param, optimizer = resumed(make, param, optimizer)
        param.grad = gradient(step)[rows].clone()
        other.grad = torch.ones_like(other)
        optimizer.step()
    return param.detach()


def resumed(make, param, optimizer):
    """Return parameter and optimizer as a new process has them: torch's generator starts anew."""
    state = copy.deepcopy(optimizer.state_dict())
    param = nn.Parameter(param.detach().clone())
    torch.manual_seed(7)
    new = make([("w", param)], lr=1e-3, betas=(0.9, 0.999), weight_decay=0.01)
    new.load_state_dict(state)
    return param, new


def share_that_differs(one, other):
    """Return "yes" for equal bits, or the share of weights that differ."""
    differ = (one != other).double().mean().item()
    return "yes" if differ == 0 else f"{differ:.0%} of weights differ"


def sharding_changes_nothing(make):
    """Compare the whole with two shards, each stepped by a rank of its own."""
    cut = SHAPE[0] // 3
    return share_that_differs(run(make), torch.cat([run(make, rows=slice(cut)), run(make, rows=slice(cut, None))]))


def decay_acts(make):
    """1000 steps of decay 1e-5 on ones with zero gradient: the mean is exp(-0.01)."""
    torch.manual_seed(7)
    param = nn.Parameter(torch.ones(4096, dtype=torch.bfloat16))
    optimizer = make([("w", param)], lr=1e-4, betas=(0.9, 0.999), weight_decay=0.1)
    for _ in range(1000):
        param.grad = torch.zeros_like(param)
        optimizer.step()
    mean = param.detach().double().mean().item()
    return "yes" if abs(mean - math.exp(-0.01)) < 5e-4 else f"mean {mean:.4f}, should be 0.9900"


def second_moment_decays(make):
    """200 steps of gradient 1e-2, 1000 of zero, beta2 = 0.999: exp_avg_sq falls to 0.3677 of what it was.

    An average that is kept corrected for its bias falls to 0.0954 instead.
    """
    torch.manual_seed(7)
    param = nn.Parameter(torch.ones(4096, dtype=torch.bfloat16))
    optimizer = make([("w", param)], lr=1e-6, betas=(0.9, 0.999), weight_decay=0.0)

    def second_moment():
        state = optimizer.state[param]
        state = state.get(0, state)  # HeavyBall numbers its views
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and "exp_avg_sq" in str(key):
                return value.double().mean().item()
        raise LookupError("no exp_avg_sq")

    for _ in range(200):
        param.grad = torch.full_like(param, 1e-2)
        optimizer.step()
    before = second_moment()
    for _ in range(1000):
        param.grad = torch.zeros_like(param)
        optimizer.step()
    ratio = second_moment() / before
    corrected = 0.3677 * (1 - 0.999**200) / (1 - 0.999**1200)
    right = min(abs(ratio / 0.3677 - 1), abs(ratio / corrected - 1)) < 0.007
    return "yes" if right else f"ratio {ratio:.4f}, should be 0.3677"


def step_counts(make):
    """The step passes 256 under a BF16 default dtype: 300 steps count as 300."""
    torch.manual_seed(7)
    torch.set_default_dtype(torch.bfloat16)
    try:
        param = nn.Parameter(torch.ones(8))
        optimizer = make([("w", param)], lr=1e-3, betas=(0.9, 0.999), weight_decay=0.0)
        for _ in range(300):
            param.grad = torch.ones_like(param)
            optimizer.step()
        candidates = [value for value in optimizer.state[param].values() if isinstance(value, torch.Tensor)]
        steps = [float(value) for value in candidates if value.numel() == 1 and float(value) >= 2]
        steps += [float(group["step"]) for group in optimizer.param_groups if group.get("step")]
        count = max(steps, default=math.nan)
    finally:
        torch.set_default_dtype(torch.float32)
    return "yes" if count in (299, 300) or math.isnan(count) else f"stopped at {count:.0f}"


PROPERTIES = {
    "sharding changes no bit": sharding_changes_nothing,
    "another draw changes no bit": lambda make: share_that_differs(run(make), run(make, disturb=lambda: torch.rand(3))),
    "a neighbour changes no bit": lambda make: share_that_differs(run(make), run(make, neighbour=True)),
    "a resume changes no bit": lambda make: share_that_differs(run(make), run(make, resume=True)),
    "weight decay acts on BF16 weights": decay_acts,
    "exp_avg_sq decays at beta2 = 0.999": second_moment_decays,
    "steps count past 256": step_counts,
}


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    warnings.filterwarnings("ignore")
    makers = optimizers()
    print("| property | " + " | ".join(makers) + " |")
    print("|---" * (len(makers) + 1) + "|")
    for name, check in PROPERTIES.items():
        print(f"| {name} | " + " | ".join(measured(check, make) for make in makers.values()) + " |", flush=True)


def measured(check, make):
    """Run a check; a peer's failure is a finding too."""
    try:
        return check(make)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:60]}"


if __name__ == "__main__":
    main()
