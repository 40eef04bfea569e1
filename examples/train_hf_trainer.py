# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Train Hugging Face's GPT-2 with its Trainer and AdamWSR: ``optimizers=(optimizer, scheduler)``.

Data are token files as scripts/preprocess_wikipedia.py writes them. Started again, it resumes. Needs transformers and
accelerate. Examples:

    python examples/train_hf_trainer.py --data PREFIX
    torchrun --nproc_per_node=2 examples/train_hf_trainer.py --data PREFIX      data parallel
    torchrun ... --check                              train from the first checkpoint once more, compare all bits
"""

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from train_gpt2 import load_tokens
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    get_scheduler,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

from nemo_sr import AdamWSR, check_replicas


class Blocks(torch.utils.data.Dataset):
    """Consecutive blocks of a token file."""

    def __init__(self, tokens: np.ndarray, length: int) -> None:
        self.tokens, self.length = tokens, length

    def __len__(self) -> int:
        return len(self.tokens) // self.length

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        block = torch.from_numpy(self.tokens[index * self.length :][: self.length].astype(np.int64))
        return {"input_ids": block, "labels": block}


class FoldedClipping(TrainerCallback):
    """Clips gradients inside the step. Trainer's own clipping would round every BF16 gradient once more."""

    def __init__(self, max_norm: float) -> None:
        self.max_norm = max_norm

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Set the step's multiplier. Under data parallelism every rank has the same gradients, and so the same norm."""
        optimizer = kwargs["optimizer"].optimizer  # inside accelerate's wrapper
        grads = [param.grad for group in optimizer.param_groups for param in group["params"] if param.grad is not None]
        norm = math.sqrt(sum(grad.double().square().sum().item() for grad in grads))
        optimizer.grad_scale = min(1.0, self.max_norm / (norm + 1e-6))


def build_trainer(arguments: argparse.Namespace, tokens: np.ndarray) -> Trainer:
    """Make model, optimizer, scheduler and Trainer."""
    training = TrainingArguments(
        output_dir=str(arguments.checkpoints),
        max_steps=arguments.steps,
        per_device_train_batch_size=arguments.batch,
        save_steps=arguments.save_every,
        logging_steps=10,
        max_grad_norm=0.0,  # FoldedClipping does it
        bf16=False,  # autocast, which a BF16 model does not need
        seed=arguments.seed,
        use_cpu=not torch.cuda.is_available(),
        ddp_backend="nccl" if torch.cuda.is_available() else "gloo",
        ddp_find_unused_parameters=False,
        report_to="none",
        disable_tqdm=True,
    )
    set_seed(arguments.seed)
    vocabulary = -(-int(tokens.max() + 1) // 64) * 64
    shape = {"n_positions": arguments.length, "n_layer": arguments.layers, "n_head": arguments.heads}
    config = GPT2Config(
        vocab_size=vocabulary, n_embd=arguments.width, bos_token_id=None, eos_token_id=None, use_cache=False, **shape
    )
    model = GPT2LMHeadModel(config).bfloat16()
    named = list(model.named_parameters())
    groups = [
        {"params": [(name, param) for name, param in named if param.dim() >= 2], "weight_decay": 0.1},
        {"params": [(name, param) for name, param in named if param.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = AdamWSR(groups, lr=arguments.lr, betas=(0.9, 0.95), seed=arguments.seed)
    scheduler = get_scheduler(
        "cosine_with_min_lr",
        optimizer,
        num_warmup_steps=arguments.steps // 20,
        num_training_steps=arguments.steps,
        scheduler_specific_kwargs={"min_lr_rate": 0.1},
    )
    return Trainer(
        model=model,
        args=training,
        train_dataset=Blocks(tokens, arguments.length),
        optimizers=(optimizer, scheduler),
        callbacks=[FoldedClipping(arguments.clip)],
    )


def bits(trainer: Trainer) -> list[torch.Tensor]:
    """Return weights and moments."""
    state = trainer.optimizer.state
    params = list(trainer.model.parameters())
    return [*params, *(state[param][key] for param in params for key in ("exp_avg", "exp_avg_sq"))]


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, metavar="PREFIX", help="token file without .bin/.idx")
    parser.add_argument("--checkpoints", type=Path, default=Path("runs/train_hf_trainer"), metavar="FOLDER")
    parser.add_argument("--save-every", type=int, default=50, metavar="N")
    parser.add_argument("--check", action="store_true", help="at the end, repeat the run from its first checkpoint")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--length", type=int, default=128, help="tokens a sequence")
    parser.add_argument("--batch", type=int, default=8, help="sequences a rank and step")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lr", type=float, default=2e-3, help="maximum; cosine to a tenth of it")
    parser.add_argument("--clip", type=float, default=1.0, help="largest norm of the gradients")
    parser.add_argument("--seed", type=int, default=1234)
    arguments = parser.parse_args()
    if arguments.check and arguments.save_every >= arguments.steps:
        parser.error("--check needs a checkpoint before the last step: choose --save-every below --steps")
    return arguments


def main() -> None:
    """Train, and check."""
    arguments = parse_arguments()
    tokens = load_tokens(arguments.data)
    trainer = build_trainer(arguments, tokens)
    found = get_last_checkpoint(arguments.checkpoints) if arguments.checkpoints.is_dir() else None
    trainer.train(resume_from_checkpoint=found)
    if trainer.args.world_size > 1:
        check_replicas(trainer.model.named_parameters())
        if trainer.is_world_process_zero():
            print(f"the replicas of {trainer.args.world_size} ranks hold the same bits", flush=True)
    if arguments.check:
        first = min(arguments.checkpoints.glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]))
        again = build_trainer(arguments, tokens)
        again.train(resume_from_checkpoint=str(first))
        differ = sum(not torch.equal(a, b) for a, b in zip(bits(trainer), bits(again), strict=True))
        if differ:
            raise SystemExit(f"{differ} tensors differ between the run and its repetition from {first}")
        if trainer.is_world_process_zero():
            print(f"resumed from {first.name}: the same bits in all weights and moments", flush=True)
    if dist.is_initialized():
        dist.barrier()  # see train_fsdp2.py
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
