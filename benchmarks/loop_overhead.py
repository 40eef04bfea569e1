# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What the training loop adds to a step of Megatron-core's own loop, as a Markdown table.

    OMP_NUM_THREADS=1 python benchmarks/loop_overhead.py [--turns N] [key=value ...]

A run of scripts/pretrain_gpt.py's, on two ranks unless told otherwise, in which every step of the training loop is
followed by one of the loop that Megatron-core's examples have: fetch a batch, clear the gradients, run the schedule,
step the optimizer. Both have the model, the optimizer, the data and the ranks in common. A step of the training loop
lasts from the end of one bare step to the beginning of the next: schedules, metrics, logs, progress, checks for signals
and whatever Lightning does are in it; validation and checkpoints are not. A ratio is of one turn; the table has medians
and quartiles. Processor time is steadier than time where others use the machine too.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time

from nemo_sr.training.config import compose_config
from nemo_sr.training.launch import detect_launch, start_processes

OVERRIDES = [
    "model.global_batch_size=128",
    "optim.sched.warmup_steps=0",
    "trainer.limit_val_batches=0",
    "exp_manager.checkpoint_callback_params.every_n_train_steps=1000000",
]


def bare_steps():
    """Return a Lightning callback that runs a bare step after each step of the loop, and times both."""
    import torch
    from lightning.pytorch.callbacks import Callback
    from megatron.core.pipeline_parallel import get_forward_backward_func

    def forward_step(micro_batches, model):
        batch = next(micro_batches)
        losses = model(batch["tokens"], batch["position_ids"], None, labels=batch["labels"])
        mask = batch["loss_mask"]
        return losses, lambda losses: ((losses.float() * mask).sum() / mask.sum(), {})

    class BareSteps(Callback):
        def __init__(self):
            self.loop, self.bare = [], []
            self._since = None

        def on_train_start(self, trainer, pl_module):
            self._batches = iter(trainer.datamodule.train_dataloader())

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            now = clocks()
            if self._since is not None:
                self.loop.append([end - begin for begin, end in zip(self._since, now, strict=True)])
            self._step(pl_module)
            self._since = clocks()
            self.bare.append([end - begin for begin, end in zip(now, self._since, strict=True)])

        def _step(self, pl_module):
            model, optimizer = pl_module.config.model, pl_module._optimizer.megatron
            batch = next(self._batches)
            micro_batches = [torch.split(tensor, model.micro_batch_size) for tensor in batch.values()]
            for chunk in pl_module.chunks:
                chunk.zero_grad_buffer()
            optimizer.zero_grad()
            get_forward_backward_func()(
                forward_step_func=forward_step,
                data_iterator=(dict(zip(batch, tensors, strict=True)) for tensors in zip(*micro_batches, strict=True)),
                model=list(pl_module.chunks),
                num_microbatches=len(micro_batches[0]),
                seq_length=model.encoder_seq_length,
                micro_batch_size=model.micro_batch_size,
                forward_only=False,
            )
            optimizer.step()

    return BareSteps()


def clocks():
    """Return the time, and the processor time of this process."""
    return time.perf_counter(), time.process_time()


def report(config, loop, bare):
    """Print the table."""
    pairs = list(zip(loop, bare[1:], strict=True))[1:]  # the first ones warm up
    ranks, model = config.trainer.devices, config.model
    print(f"{ranks} rank(s), global batch {model.global_batch_size}, {len(pairs)} turns")
    print()
    print("| step | bare, median | in the training loop, median | ratio: median (quartiles) |")
    print("|---|---|---|---|")
    for clock, name in enumerate(("time", "processor time of rank 0")):
        one, other = ([steps[clock] for steps in column] for column in zip(*pairs, strict=True))
        low, middle, high = statistics.quantiles([a / b for a, b in zip(one, other, strict=True)], n=4)
        medians = f"{statistics.median(other):.3f} s | {statistics.median(one):.3f} s"
        print(f"| {name} | {medians} | {middle:.4f} ({low:.4f} to {high:.4f}) |", flush=True)


def main():
    """Start the ranks, or be one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=24, help="pairs of steps (%(default)s)")
    args, words = parser.parse_known_args()
    launch = detect_launch(os.environ)
    steps = f"trainer.max_steps={args.turns + 2}"
    if launch.launcher == "none":
        with tempfile.TemporaryDirectory() as folder:
            run = f"exp_manager.explicit_log_dir={folder}/run"
            config = compose_config([*OVERRIDES, steps, run, *words])
            status = start_processes(config.trainer, [f"--turns={args.turns}", run, *words], began=time.time())
        sys.exit(status)
    from nemo_sr.training.pretrain import _quieten, train

    config = compose_config([*OVERRIDES, steps, *words])
    os.environ["CUDA_VISIBLE_DEVICES"] = (
        "" if config.trainer.accelerator == "cpu" else os.environ["CUDA_VISIBLE_DEVICES"]
    )
    _quieten()
    steps = bare_steps()
    train(config, launch, callbacks=[steps])
    if launch.rank == 0:
        report(config, steps.loop, steps.bare)


if __name__ == "__main__":
    main()
