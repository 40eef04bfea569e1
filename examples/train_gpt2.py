# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Train GPT-2 in plain PyTorch, with the precision strategies of the paper as three switches. A single file.

Data are token files as scripts/preprocess_wikipedia.py writes them (PREFIX.bin and PREFIX.idx). Examples:

    python examples/train_gpt2.py --data PREFIX                                        BF16 + stochastic rounding
    python examples/train_gpt2.py --data PREFIX --no-stoc-rounding                     BF16, rounded to nearest
    python examples/train_gpt2.py --data PREFIX --dtype float32                        FP32
    python examples/train_gpt2.py --data PREFIX --dtype float32 --mixed-precision      FP32 weights under autocast
    torchrun --nproc_per_node=2 examples/train_gpt2.py --data PREFIX                   data parallel
"""

import argparse
import contextlib
import math
import os
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from nemo_sr import AdamW_SR_BF16, check_replicas

DTYPES = {b"\x04": np.int32, b"\x08": np.uint16}  # Megatron's codes


class Block(nn.Module):
    """A pre-norm transformer block with causal attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, length, width) to the same shape."""
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.ln_1(x)).chunk(3, dim=-1))
        attention = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(attention.transpose(1, 2).flatten(-2))
        return x + self.out(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    """GPT-2: learned positions, tied embeddings."""

    def __init__(self, vocabulary: int, length: int, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.ln_f = nn.LayerNorm(width)
        for name, param in self.named_parameters():
            if param.dim() == 2:
                scale = 0.02 / math.sqrt(2 * layers) if name.endswith(("proj.weight", "out.weight")) else 0.02
                nn.init.normal_(param, std=scale)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the mean cross-entropy in nats of predicting y from x, both (batch, length) int64."""
        hidden = self.blocks(self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device)))
        logits = F.linear(self.ln_f(hidden), self.tokens.weight)
        return F.cross_entropy(logits.float().flatten(0, 1), y.flatten())


def load_tokens(prefix: str) -> np.ndarray:
    """Map PREFIX.bin into memory, with the type that PREFIX.idx names: 9 + 8 bytes, then its code."""
    if not (os.path.exists(prefix + ".idx") and os.path.exists(prefix + ".bin")):
        raise SystemExit(f"--data needs PREFIX.bin and PREFIX.idx; {prefix} lacks one. Run preprocess_wikipedia.py.")
    with open(prefix + ".idx", "rb") as index:
        if index.read(9) != b"MMIDIDX\x00\x00":
            raise SystemExit(
                f"--data needs a token file of preprocess_wikipedia.py; {prefix}.idx is none. Check the prefix."
            )
        code = index.read(9)[-1:]
    if code not in DTYPES:
        raise SystemExit(f"--data needs tokens of 16 or 32 bits; {prefix}.idx has type {code.hex()}. Preprocess again.")
    return np.memmap(prefix + ".bin", dtype=DTYPES[code], mode="r")


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, metavar="PREFIX", help="token file without .bin/.idx")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16", help="of weights and gradients")
    parser.add_argument(
        *("--mixed-precision", "--mixed_precision"), action="store_true", help="autocast to BF16 (with --dtype float32)"
    )
    parser.add_argument(
        *("--stoc-rounding", "--stoc_rounding"),
        action=argparse.BooleanOptionalAction,
        default=True,
        help="with bfloat16",
    )
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--length", type=int, default=128, help="tokens a sequence")
    parser.add_argument("--batch", type=int, default=8, help="sequences a rank and step")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lr", type=float, default=2e-3, help="maximum; cosine to a tenth of it")
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("--check-replicas", type=int, default=50, metavar="N", help="compare the ranks every N steps")
    arguments = parser.parse_args()
    if arguments.mixed_precision and arguments.dtype != "float32":
        parser.error("--mixed-precision needs FP32 weights: add --dtype float32")
    return arguments


def build_optimizer(arguments: argparse.Namespace, model: nn.Module) -> torch.optim.Optimizer:
    """Make the optimizer that the switches ask for, without decay on biases and norms."""
    named = list(model.named_parameters())
    groups = [
        {"params": [(name, param) for name, param in named if param.dim() >= 2], "weight_decay": 0.1},
        {"params": [(name, param) for name, param in named if param.dim() < 2], "weight_decay": 0.0},
    ]
    options = {"lr": arguments.lr, "betas": (0.9, 0.95)}
    if arguments.dtype == "bfloat16" and arguments.stoc_rounding:
        return AdamW_SR_BF16(groups, seed=arguments.seed, **options)
    return torch.optim.AdamW(groups, **options)


def main() -> None:
    """Train, and print the loss."""
    arguments = parse_arguments()
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if world > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    tokens = load_tokens(arguments.data)
    vocabulary = -(-int(tokens.max() + 1) // 64) * 64
    torch.manual_seed(arguments.seed)
    model: nn.Module = GPT2(vocabulary, arguments.length, arguments.layers, arguments.width, arguments.heads)
    model.to(device, getattr(torch, arguments.dtype))
    if world > 1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = build_optimizer(arguments, model)
    minimum = 0.1
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: minimum + (1 - minimum) * 0.5 * (1 + math.cos(math.pi * min(step / arguments.steps, 1.0))),
    )
    autocast = torch.autocast(device.type, torch.bfloat16) if arguments.mixed_precision else contextlib.nullcontext()
    generator = np.random.default_rng([arguments.seed, rank])
    started = time.perf_counter()
    for step in range(1, arguments.steps + 1):
        starts = generator.integers(0, len(tokens) - arguments.length - 1, arguments.batch)
        rows = np.stack([tokens[s : s + arguments.length + 1] for s in starts]).astype(np.int64)
        batch = torch.from_numpy(rows).to(device)
        with autocast:
            loss = model(batch[:, :-1], batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if world > 1 and step % arguments.check_replicas == 0:
            check_replicas(model.named_parameters())
        if rank == 0 and (step % 20 == 0 or step == arguments.steps):
            rate = step * arguments.batch * arguments.length * world / (time.perf_counter() - started)
            print(f"step {step:5d}  loss {loss.item():.4f}  {rate:,.0f} tokens/s", flush=True)
    if world > 1:
        check_replicas(model.named_parameters())
        if rank == 0:
            print(f"the replicas of {world} ranks hold the same bits", flush=True)
        dist.barrier()  # see train_fsdp2.py
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
