# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Train GPT-2 in plain PyTorch with FSDP2 and AdamWSR: sharded blocks, DCP checkpoints, a cosine schedule.

Data are token files as scripts/preprocess_wikipedia.py writes them. Started again, it resumes. Examples:

    torchrun --nproc_per_node=2 examples/train_fsdp2.py --data PREFIX                  shards over two ranks
    torchrun --nproc_per_node=4 examples/train_fsdp2.py --data PREFIX --replicas 2     two replicas of two shards (HSDP)
    torchrun ... --check                                     train from the first checkpoint once more, compare all bits
"""

import argparse
import math
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from train_gpt2 import GPT2, load_tokens

from nemo_sr import AdamWSR, check_replicas


class Run:
    """Model, optimizer and schedule, and the number of steps that they have taken."""

    def __init__(self, arguments: argparse.Namespace, vocabulary: int, mesh: DeviceMesh) -> None:
        torch.manual_seed(arguments.seed)
        self.model = GPT2(vocabulary, arguments.length, arguments.layers, arguments.width, arguments.heads)
        self.model.to(mesh.device_type, torch.bfloat16)
        # Gradients are summed over microbatches and ranks in FP32, and rounded to BF16 once.
        options = {
            "mesh": mesh if arguments.replicas > 1 else mesh["shard"],
            "mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.float32),
        }
        for block in self.model.blocks:
            fully_shard(block, **options)
        fully_shard(self.model, **options)
        named = list(self.model.named_parameters())  # shards now, under the same names
        groups = [
            {"params": [(name, param) for name, param in named if param.dim() >= 2], "weight_decay": 0.1},
            {"params": [(name, param) for name, param in named if param.dim() < 2], "weight_decay": 0.0},
        ]
        self.optimizer = AdamWSR(groups, lr=arguments.lr, betas=(0.9, 0.95), seed=arguments.seed)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer,
            lambda step: 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min(step / arguments.steps, 1.0))),
        )
        self.steps = 0

    def save(self, folder: Path) -> None:
        """Write a checkpoint; every rank writes its shards."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        state = {"model": model, "optimizer": optimizer, "scheduler": self.scheduler.state_dict()}
        dcp.save(state, checkpoint_id=folder / f"step_{self.steps:06d}")

    def load(self, checkpoint: Path) -> None:
        """Read a checkpoint, of any number of ranks; every rank reads its shards."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        state = {"model": model, "optimizer": optimizer, "scheduler": self.scheduler.state_dict()}
        dcp.load(state, checkpoint_id=checkpoint)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.steps = self.scheduler.last_epoch

    def step(self, batches: list[torch.Tensor], clip: float, mesh: DeviceMesh) -> torch.Tensor:
        """Take one step on microbatches of shape (batch, length + 1); return the mean loss of all ranks."""
        self.optimizer.zero_grad()
        total = torch.zeros((), device=mesh.device_type)
        for number, batch in enumerate(batches, start=1):
            self.model.set_requires_gradient_sync(number == len(batches))
            loss = self.model(batch[:, :-1], batch[:, 1:]) / len(batches)
            loss.backward()
            total += loss.detach()
        # Clipping rides along in the step: torch's clip_grad_norm_ would round every gradient once more.
        squares = sum(param.grad.to_local().double().square().sum() for param in self.model.parameters())
        dist.all_reduce(squares, group=mesh["shard"].get_group())
        self.optimizer.grad_scale = min(1.0, clip / (math.sqrt(squares.item()) + 1e-6))
        self.optimizer.step()
        self.scheduler.step()
        self.steps += 1
        dist.all_reduce(total)
        return total / dist.get_world_size()


def draw(tokens: np.ndarray, arguments: argparse.Namespace, step: int, device: str) -> list[torch.Tensor]:
    """Return a rank's microbatches of a step: a function of seed, step and rank, so that resuming needs no state."""
    batches = []
    for number in range(arguments.accumulate):
        generator = np.random.default_rng([arguments.seed, step, number, dist.get_rank()])
        starts = generator.integers(0, len(tokens) - arguments.length - 1, arguments.batch)
        rows = np.stack([tokens[s : s + arguments.length + 1] for s in starts]).astype(np.int64)
        batches.append(torch.from_numpy(rows).to(device))
    return batches


def train(run: Run, arguments: argparse.Namespace, tokens: np.ndarray, mesh: DeviceMesh, *, save: bool) -> None:
    """Train until the last step."""
    while run.steps < arguments.steps:
        loss = run.step(draw(tokens, arguments, run.steps, mesh.device_type), arguments.clip, mesh)
        if dist.get_rank() == 0 and (run.steps % 10 == 0 or run.steps == arguments.steps):
            print(f"step {run.steps:5d}  loss {loss.item():.4f}", flush=True)
        if save and (run.steps % arguments.save_every == 0 or run.steps == arguments.steps):
            run.save(arguments.checkpoints)
    if arguments.replicas > 1:
        check_replicas(run.model.named_parameters(), group=mesh["replicate"].get_group())
        if dist.get_rank() == 0:
            print(f"the {arguments.replicas} replicas hold the same bits", flush=True)


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the finished checkpoints, oldest first: DCP writes .metadata last."""
    return sorted(path.parent for path in folder.glob("step_*/.metadata"))


def local_bits(run: Run) -> list[torch.Tensor]:
    """Return this rank's shards of weights and moments."""
    moments = [run.optimizer.state[param][key] for param in run.model.parameters() for key in ("exp_avg", "exp_avg_sq")]
    return [tensor.detach().to_local().clone() for tensor in (*run.model.parameters(), *moments)]


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, metavar="PREFIX", help="token file without .bin/.idx")
    parser.add_argument("--checkpoints", type=Path, default=Path("runs/train_fsdp2"), metavar="FOLDER")
    parser.add_argument("--save-every", type=int, default=50, metavar="N")
    parser.add_argument("--check", action="store_true", help="at the end, repeat the run from its first checkpoint")
    parser.add_argument("--replicas", type=int, default=1, help="each is sharded over its part of the ranks")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--length", type=int, default=128, help="tokens a sequence")
    parser.add_argument("--batch", type=int, default=4, help="sequences a rank and microbatch")
    parser.add_argument("--accumulate", type=int, default=2, help="microbatches a step")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lr", type=float, default=2e-3, help="maximum; cosine to a tenth of it")
    parser.add_argument("--clip", type=float, default=1.0, help="largest norm of the gradients")
    parser.add_argument("--seed", type=int, default=1234)
    arguments = parser.parse_args()
    if arguments.check and arguments.save_every >= arguments.steps:
        parser.error("--check needs a checkpoint before the last step: choose --save-every below --steps")
    return arguments


def main() -> None:
    """Train, print the loss, and check."""
    arguments = parse_arguments()
    tokens = load_tokens(arguments.data)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    world = dist.get_world_size()
    if world % arguments.replicas:
        raise SystemExit(f"--replicas must divide the {world} ranks; got {arguments.replicas}. Choose a divisor.")
    mesh = init_device_mesh(
        device, (arguments.replicas, world // arguments.replicas), mesh_dim_names=("replicate", "shard")
    )
    vocabulary = -(-int(tokens.max() + 1) // 64) * 64
    run = Run(arguments, vocabulary, mesh)
    if found := checkpoints_in(arguments.checkpoints):
        run.load(found[-1])
        if dist.get_rank() == 0:
            print(f"resumed from {found[-1]}", flush=True)
    train(run, arguments, tokens, mesh, save=True)
    if arguments.check:
        again = Run(arguments, vocabulary, mesh)
        again.load(checkpoints_in(arguments.checkpoints)[0])
        first = again.steps
        train(again, arguments, tokens, mesh, save=False)
        differ = sum(not torch.equal(a, b) for a, b in zip(local_bits(run), local_bits(again), strict=True))
        if differ:
            raise SystemExit(f"rank {dist.get_rank()}: {differ} tensors differ between the run and its repetition")
        if dist.get_rank() == 0:
            print(f"resumed at step {first}: the same bits in all weights and moments", flush=True)
    # gloo's threads need Python's lock to free what they summed last; who destroys a group holds it and waits for them.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
