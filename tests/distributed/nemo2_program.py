# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Rank script: a training program of NeMo 2, on a CPU, with adamw_sr for its optimizer.

Usage: nemo2_program.py CORPUS CHECKPOINT OUTPUT.json OPTIONS

OPTIONS is JSON: `steps`, `save_at` (or null), `resume`, `strategy` (arguments of MegatronStrategy) and `distributed`.
The trainer, the strategy, the optimizer's module, the model, the data module and the checkpoints are NeMo's own.
What NeMo 2 asks of a GPU beyond Megatron-core has a stand-in here:

- torch.cuda.device_count is 1: initialize_model_parallel_for_nemo seeds no generators without a GPU;
- torch.cuda.max_memory_reserved and max_memory_allocated are 0: MegatronStrategy logs them;
- torch.tensor(pin_memory=True).to("cuda"), by which it moves what it logs, stays where it is;
- _fix_tensors_device, which after a load insists on an initialised GPU, leaves a checkpoint as it is.
"""

import contextlib
import hashlib
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import nemo_sr.megatron
from nemo_sr.megatron.cpu_platform import replace

MODEL = {
    "num_layers": 2,
    "hidden_size": 64,
    "ffn_hidden_size": 128,
    "num_attention_heads": 4,
    "seq_length": 32,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    # Fused functions of Transformer Engine, Apex or torch.compile.
    "gradient_accumulation_fusion": False,
    "masked_softmax_fusion": False,
    "bias_activation_fusion": False,
    "bias_dropout_fusion": False,
    "apply_rope_fusion": False,
    "cross_entropy_loss_fusion": False,
}


def put_stand_ins(stack):
    """Set what the docstring lists."""
    import nemo.lightning.io.pl as checkpoint_io

    true_tensor, true_to = torch.tensor, torch.Tensor.to

    def tensor(*args, pin_memory=False, **kwargs):
        return true_tensor(*args, **kwargs)

    def to(self, *args, **kwargs):
        return true_to(self, *("cpu" if arg == "cuda" else arg for arg in args), **kwargs)

    cuda = {"device_count": lambda: 1, "max_memory_reserved": lambda: 0, "max_memory_allocated": lambda: 0}
    replace(stack, torch.cuda, cuda)
    replace(stack, torch, {"tensor": tensor})
    replace(stack, torch.Tensor, {"to": to})
    replace(stack, checkpoint_io, {"_fix_tensors_device": lambda checkpoint: checkpoint})


def build_trainer(checkpoint, options, losses):
    """Return NeMo's trainer; it notes every step's loss, and saves after `save_at` steps."""
    from lightning.pytorch import Callback
    from megatron.core.distributed import DistributedDataParallelConfig
    from nemo import lightning as nl

    class Watcher(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            losses.append(float(outputs["loss"] if isinstance(outputs, dict) else outputs))
            if trainer.global_step == options["save_at"]:
                trainer.save_checkpoint(checkpoint)

    ddp = DistributedDataParallelConfig(use_distributed_optimizer=options["distributed"], grad_reduce_in_fp32=False)
    strategy = nl.MegatronStrategy(
        ddp=ddp,
        process_group_backend="gloo",
        ckpt_async_save=False,
        # NeMo's own gathers timers on rank 0 alone: nothing of NCCL's, and the end of any further call over gloo.
        replace_progress_bar=False,
        **options["strategy"],
    )
    return nl.Trainer(
        devices=int(os.environ["WORLD_SIZE"]),
        accelerator="cpu",
        strategy=strategy,
        plugins=nl.MegatronMixedPrecision(precision="bf16-mixed"),
        max_steps=options["steps"],
        limit_val_batches=0,
        limit_test_batches=0,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        use_distributed_sampler=False,
        callbacks=[Watcher()],
    )


def build_model(tokenizer, options):
    """Return NeMo's GPT with NeMo's module of Megatron's optimizer."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.optimizer import OptimizerConfig
    from nemo.collections import llm
    from nemo.lightning.pytorch.optim import CosineAnnealingScheduler, MegatronOptimizerModule

    config = OptimizerConfig(
        optimizer="adamw_sr",
        lr=5e-3,
        weight_decay=0.1,
        clip_grad=1.0,
        bf16=True,
        use_distributed_optimizer=options["distributed"],
    )
    config.sr_seed = 4 if options["resume"] else 3  # the checkpoint's wins
    schedule = CosineAnnealingScheduler(warmup_steps=2, constant_steps=0, min_lr=1e-4, max_steps=20)
    return llm.GPTModel(
        llm.GPTConfig(**MODEL, transformer_layer_spec=lambda config: get_gpt_layer_local_spec()),
        optim=MegatronOptimizerModule(config, lr_scheduler=schedule),
        tokenizer=tokenizer,
    )


def train(corpus, checkpoint, options):
    """Train, and return the losses and a digest of the weights and of the optimizer's state of every rank."""
    from nemo.collections import llm
    from nemo.collections.common.tokenizers.bytelevel_tokenizers import ByteLevelTokenizer

    nemo_sr.megatron.install()
    losses = []
    trainer = build_trainer(checkpoint, options, losses)
    tokenizer = ByteLevelTokenizer()
    data = llm.PreTrainingDataModule(
        paths=[corpus],
        seq_length=MODEL["seq_length"],
        tokenizer=tokenizer,
        micro_batch_size=2,
        global_batch_size=8,
        num_workers=0,
        split="100,0,0",
    )
    trainer.fit(build_model(tokenizer, options), data, ckpt_path=checkpoint if options["resume"] else None)
    chain = trainer.optimizers[0].mcore_optimizer
    tensors = [param.detach() for param in trainer.strategy.megatron_parallel.parameters()]
    steps = set()
    for link in chain.chained_optimizers:
        for state in link.optimizer.state.values():
            tensors += [state["exp_avg"], state["exp_avg_sq"]]
            steps.add(int(state["step"]))
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    found = {
        "losses": losses,
        "digest": sha.hexdigest(),
        "steps": sorted(steps),
        "types": sorted({str(tensor.dtype) for tensor in tensors}),
        "chain": type(chain).__name__,
        "seeds": sorted({group["seed"] for link in chain.chained_optimizers for group in link.optimizer.param_groups}),
    }
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, found)
    return everyone


def main(corpus, checkpoint, output, options):
    everyone = train(corpus, checkpoint, json.loads(options))
    if dist.get_rank() == 0:
        Path(output).write_text(json.dumps(everyone))


if __name__ == "__main__":
    with nemo_sr.megatron.cpu_platform(), contextlib.ExitStack() as stack:
        put_stand_ins(stack)
        main(*sys.argv[1:])
