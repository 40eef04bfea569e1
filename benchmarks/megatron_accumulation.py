# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What it costs to sum the gradients of many micro batches in BF16, as Markdown tables.

    python benchmarks/megatron_accumulation.py [--train 30]

A small GPT (gpt_tiny_cpu) on text, byte by byte, is trained a little; then the gradients of 256 micro batches are
summed in FP64, in FP32, in BF16 rounded to nearest (what Megatron-core's BF16 buffer does, to the bit) and in BF16
rounded stochastically. Errors are 2-norms relative to the FP64 sum. `--train` also trains with BF16 and FP32 buffers.
"""

import argparse
import math

import torch
from megatron_gpt import (
    build_model,
    build_optimizer,
    configuration,
    is_rank,
    make_groups,
    mean_loss,
    megatron_on_cpu,
    run_on_ranks,
    text,
)

from nemo_sr.rounding import round_stochastic

COUNTS = (1, 4, 16, 64, 256)
KINDS = ("FP32", "BF16, nearest", "BF16, stochastic")
WARMUP, CHAINS, MICROBATCHES = 40, 3, 64
BETAS, EPS = (0.9, 0.95), 1e-8


def read_arguments():
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--train", type=int, default=0, help="steps of training, of 64 micro batches each")
    return parser.parse_args()


def train(model, optimizer, samples, steps, microbatches):
    """Train on the samples in order; return the loss of every step."""
    losses = []
    for step in range(steps):
        model.zero_grad_buffer()
        total = 0.0
        for number in range(microbatches):
            loss = mean_loss(model, samples[(step * microbatches + number) % len(samples)].unsqueeze(0))
            (loss / microbatches).backward()
            total += loss.item()
        model.finish_grad_sync()
        optimizer.step()
        losses.append(total / microbatches)
    return losses


def gradients(model, samples):
    """Yield the gradient of every micro batch, flat; values of BF16 in FP32."""
    for sample in samples:
        model.zero_grad_buffer()
        mean_loss(model, sample.unsqueeze(0)).backward()
        yield torch.cat([param.main_grad.flatten() for param in model.parameters()])


def sums(model, samples, generator):
    """Yield the number of micro batches, their sum in FP64, and their sums in each kind, at COUNTS."""
    exact, kinds = 0.0, {}
    for number, grad in enumerate(gradients(model, samples), 1):
        exact = exact + grad.double()
        if number == 1:
            kinds = {kind: grad.clone() if kind == "FP32" else grad.bfloat16() for kind in KINDS}
        else:
            noise = torch.randint(0, 65536, grad.shape, generator=generator, dtype=torch.int32)
            kinds["FP32"] += grad
            kinds["BF16, nearest"] += grad.bfloat16()
            kinds["BF16, stochastic"] = round_stochastic(kinds["BF16, stochastic"].float() + grad, noise)
        if number in COUNTS:
            yield number, exact / number, {kind: total.double() / number for kind, total in kinds.items()}


def direction(optimizer, model, grad):
    """Return AdamW's step for a gradient, from the moments that training has left, before the learning rate."""
    part = optimizer.chained_optimizers[0]
    states = [part.optimizer.state[part._shards[param]] for param in model.parameters()]
    m, v = (torch.cat([state[key].flatten() for state in states]).double() for key in ("exp_avg", "exp_avg_sq"))
    t = int(states[0]["step"]) + 1
    m, v = (beta * old + (1 - beta) * new for beta, old, new in zip(BETAS, (m, v), (grad, grad * grad), strict=True))
    return (m / (1 - BETAS[0] ** t)) / ((v / (1 - BETAS[1] ** t)).sqrt() + EPS)


def error(value, exact):
    """Return the relative 2-norm."""
    return ((value - exact).norm() / exact.norm()).item()


def root_mean_square(values):
    """Return the root of the mean square."""
    return math.sqrt(sum(value * value for value in values) / len(values))


def measure(samples):
    """Print the errors of the sum and of the step."""
    model = build_model(grad_in_fp32=True)
    optimizer = build_optimizer(model)
    train(model, optimizer, samples, WARMUP, 16)
    rows, means = {count: {kind: ([], []) for kind in KINDS} for count in COUNTS}, {count: [] for count in COUNTS}
    generator = torch.Generator().manual_seed(1)
    for chain in range(CHAINS):
        begin = 16 * WARMUP + chain * COUNTS[-1]
        for count, exact, kinds in sums(model, samples[begin : begin + COUNTS[-1]], generator):
            step = direction(optimizer, model, exact)
            means[count].append(exact)
            for kind, value in kinds.items():
                rows[count][kind][0].append(error(value, exact))
                rows[count][kind][1].append(error(direction(optimizer, model, value), step))
    for what, place in (("gradient", 0), ("step", 1)):
        print(f"\nrelative error of the {what}, root mean square over {CHAINS} runs\n")
        print(f"| micro batches | {' | '.join(KINDS)} | other data |\n|---|{'---|' * (len(KINDS) + 1)}")
        for count in COUNTS:
            cells = [f"{100 * root_mean_square(rows[count][kind][place]):.3g} %" for kind in KINDS]
            # What another sample of the data would have changed: the gradient's own uncertainty.
            values = means[count] if place == 0 else [direction(optimizer, model, mean) for mean in means[count]]
            other = error(values[1], values[0]) / math.sqrt(2)
            print(f"| {count} | {' | '.join(cells)} | {100 * other:.3g} % |", flush=True)


def compare_training(samples, steps):
    """Print the losses of training with each buffer."""
    held_out, rows = samples[-64:], []
    for label, fp32, seed in (("BF16", False, 0), ("FP32", True, 0), ("BF16, other noise", False, 1)):
        model = build_model(grad_in_fp32=fp32)
        losses = train(model, build_optimizer(model, sr_seed=seed), samples[:-64], steps, MICROBATCHES)
        with torch.no_grad():
            validation = sum(mean_loss(model, sample.unsqueeze(0)).item() for sample in held_out) / len(held_out)
        rows.append(f"| {label} | {sum(losses[-5:]) / 5:.4f} | {validation:.4f} |")
    print(f"\n{steps} steps of {MICROBATCHES} micro batches\n")
    print("| buffer | last 5 training losses | validation |\n|---|---|---|")
    print("\n".join(rows), flush=True)


def main():
    """Print the tables."""
    arguments = read_arguments()
    if not is_rank():
        run_on_ranks(1, f"--train={arguments.train}")
        return
    with megatron_on_cpu():
        make_groups()
        samples = text(128)
        print(f"{configuration()}, byte vocabulary, {WARMUP} steps of 16 micro batches before")
        measure(samples)
        if arguments.train:
            compare_training(samples, arguments.train)


if __name__ == "__main__":
    main()
