# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The program of docs/tutorial.md, which explains it: why BF16 loses updates, AdamWSR, a rounding checked by hand.

The cells between the marks ``# %%`` are the blocks of that page. Run it as a script (some ten seconds on a CPU), or
open it as a notebook in an editor that knows these marks.
"""

# %%
import torch

from nemo_sr import AdamWSR, ShardLayout, noise16, round_stochastic

for value in (1.0, 0.1, 0.01):
    weight = torch.tensor(value, dtype=torch.bfloat16)
    above = torch.nextafter(weight, torch.tensor(2.0, dtype=torch.bfloat16))
    print(f"next to {weight:.6f} lies {above:.6f}: a step of {(above - weight) / weight:.2%}")

# %%
nearest = torch.ones(10_000, dtype=torch.bfloat16)
stochastic = torch.ones(10_000, dtype=torch.bfloat16)
index = torch.arange(10_000)
for step in range(1, 101):
    nearest += 0.001
    noise = noise16(seed=0, step=step, stream=0, name="w", index=index)
    stochastic = round_stochastic(stochastic.float() + 0.001, noise)

print(f"1 + 100 * 0.001, each sum rounded to nearest:  {nearest.float().mean():.4f}")
print(f"each sum rounded stochastically, mean of 10000: {stochastic.float().mean():.4f}")


# %%
torch.manual_seed(0)
teacher = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
inputs = torch.randn(4096, 16)
targets = 3 * teacher(inputs).detach()


def make_model(dtype):
    """A multilayer perceptron, the same weights every time."""
    torch.manual_seed(1)
    hidden = [torch.nn.Linear(16, 128), torch.nn.GELU(), torch.nn.Linear(128, 128), torch.nn.GELU()]
    return torch.nn.Sequential(*hidden, torch.nn.Linear(128, 1)).to(dtype)


def train(model, optimizer, num_steps=400):
    """Take steps on the first 3072 samples; return the mean squared error on the others."""
    generator = torch.Generator().manual_seed(2)
    dtype = next(model.parameters()).dtype
    for _ in range(num_steps):
        batch = torch.randint(0, 3072, (256,), generator=generator)
        loss = (model(inputs[batch].to(dtype)).float() - targets[batch]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return (model(inputs[3072:].to(dtype)).float() - targets[3072:]).square().mean().item()


# %%
def compare(lr):
    """Train in FP32, BF16 and BF16 with stochastic rounding, at one learning rate."""
    options = {"lr": lr, "betas": (0.9, 0.95), "weight_decay": 0.0}
    model = make_model(torch.float32)
    fp32 = train(model, torch.optim.AdamW(model.parameters(), **options))
    model = make_model(torch.bfloat16)
    bf16 = train(model, torch.optim.AdamW(model.parameters(), **options))
    model = make_model(torch.bfloat16)
    bf16_sr = train(model, AdamWSR(model.named_parameters(), seed=1234, **options))
    print(f"lr {lr:g}:  FP32 {fp32:.4f}   BF16 {bf16:.4f}   BF16+SR {bf16_sr:.4f}")


compare(1e-3)
compare(1e-4)

# %%
model = make_model(torch.bfloat16)
optimizer = AdamWSR(model.named_parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.0, seed=1234)
train(model, optimizer, num_steps=100)

optimizer.zero_grad()
(model(inputs[:256].bfloat16()).float() - targets[:256]).square().mean().backward()
report = optimizer.rounding_report()[0]["weight"]
print(f"rounding to nearest would lose {report.share_lost:.0%} of the updates")
print(f"this step moves {report.share_moved:.0%} of the weights")

# %%
param = torch.nn.Parameter(torch.tensor([0.5, -1.25, 3.0, 0.0078125], dtype=torch.bfloat16))
param.grad = torch.tensor([0.1, 0.2, -0.3, 0.4], dtype=torch.bfloat16)
before, grad = param.detach().clone(), param.grad.float()
AdamWSR([("w", param)], lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, seed=11).step()

# %%
f32 = torch.float32
beta1, one_minus_beta1 = torch.tensor([0.9, 1 - 0.9], dtype=f32)
beta2, one_minus_beta2 = torch.tensor([0.95, 1 - 0.95], dtype=f32)
root, eps, decay, rate = torch.tensor([1 / (1 - 0.95) ** 0.5, 1e-8, 1 - 1e-3 * 0.1, 1e-3 / (1 - 0.9)], dtype=f32)

m = torch.zeros(4) * beta1 + grad * one_minus_beta1
v = torch.zeros(4) * beta2 + (grad * grad) * one_minus_beta2
d = v.double().sqrt().float() * root + eps
w = before.float() * decay - (m / d) * rate

# %%
noise = noise16(seed=11, step=1, stream=0, name="w", index=torch.arange(4))
for i in range(4):
    bits = w[i].view(torch.int32).item() & 0xFFFFFFFF
    total = bits + noise[i].item()
    written = param[i].detach().view(torch.int16).item() & 0xFFFF
    print(f"{bits:08X} + {noise[i].item():04X} = {total:08X} -> {total >> 16:04X}, the optimizer wrote {written:04X}")
    assert total >> 16 == written

# %%
halves = [torch.nn.Parameter(half.clone()) for half in before.split(2)]
for half, grad_half in zip(halves, grad.bfloat16().split(2), strict=True):
    half.grad = grad_half.clone()
sharded = AdamWSR(halves, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, seed=11)
for half, start in zip(halves, (0, 2), strict=True):
    sharded.bind(half, "w", ShardLayout((4,), (0,), (4,), start, start + 2))
sharded.step()
print("two shards, the same bits:", torch.equal(torch.cat([half.detach() for half in halves]), param.detach()))
