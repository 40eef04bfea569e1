# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""A NeMo model around Megatron-core's GPT: one Lightning step is one run of the pipeline schedule."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.pipeline_parallel import get_forward_backward_func
from nemo.core import ModelPT
from omegaconf import DictConfig, OmegaConf

from nemo_sr.models.gpt import build_gpt, transformer_config
from nemo_sr.training.batch import BatchSchedule
from nemo_sr.training.nonfinite import find_nonfinite_gradients
from nemo_sr.training.optim import TorchViewOfMegatron, build_optimizer, build_schedule
from nemo_sr.training.profiling import named_range
from nemo_sr.training.regimes import find_regime
from nemo_sr.training.skipping import SkippedSteps
from nemo_sr.training.spikes import LossSpikes
from nemo_sr.training.startup import say_above_bar
from nemo_sr.training.validation_sets import validation_sets

Batch = dict[str, torch.Tensor]


class GPTModule(ModelPT):  # type: ignore[misc]
    """A GPT under Megatron-core's tensor, pipeline and data parallelism.

    Bytes per parameter follow from ``optim.name`` (README); the state of the optimizer is sharded over the
    data-parallel ranks. Any layout that ``validate.check_layout`` lets through starts from the same weights.

    Args:
        config: The whole configuration.
        vocab_size: Tokens of the tokenizer.
        trainer: The Lightning trainer.
    """

    def __init__(self, config: DictConfig, vocab_size: int, trainer: Any) -> None:
        # NeMo keeps its configuration as one node, with the optimizer inside.
        cfg = OmegaConf.merge(OmegaConf.to_container(config.model), {"optim": OmegaConf.to_container(config.optim)})
        super().__init__(cfg, trainer=trainer)
        self.config = config
        self.vocab_size = vocab_size
        # Megatron-core's schedule runs the backward passes of all micro batches by itself.
        self.automatic_optimization = False
        self.chunks: Any = torch.nn.ModuleList()
        self.skipped = SkippedSteps(config.trainer.max_skipped_steps)
        self.spikes = LossSpikes()
        self.batch_schedule = BatchSchedule.of(config.model)
        self._validation_sums: dict[int, torch.Tensor] = {}

    @property
    def on_cpu(self) -> bool:
        """Whether the run is on the CPU."""
        return bool(self.config.trainer.accelerator == "cpu")

    def configure_model(self) -> None:
        """Build this rank's part of the GPT; Lightning calls this once the process groups are there."""
        if len(self.chunks):
            return
        model = self.config.model
        regime = find_regime(self.config.optim)
        config = transformer_config(
            model,
            on_cpu=self.on_cpu,
            params_dtype=torch.bfloat16 if regime.weights == "bf16" else torch.float32,
            autocast=regime.autocast,
        )
        config.finalize_model_grads_func = finalize_model_grads
        gpt = build_gpt(
            config,
            model,
            vocab_size=self.vocab_size,
            on_cpu=self.on_cpu,
        )
        self.chunks.append(gpt)

    def wrap_chunks(self) -> None:
        """Put Megatron-core's data parallelism around the model, with contiguous buffers of weights and gradients."""
        optim = self.config.optim
        grad_dtype = optim.grad_dtype or find_regime(optim).grad_dtypes[0]
        ddp_config = DistributedDataParallelConfig(
            use_distributed_optimizer=True, grad_reduce_in_fp32=grad_dtype == "fp32"
        )
        self.chunks = torch.nn.ModuleList(
            DistributedDataParallel(chunk.config, ddp_config, chunk) for chunk in self.chunks
        )
        for chunk in self.chunks:
            chunk.broadcast_params()

    def configure_optimizers(self) -> Any:
        """Return Megatron-core's optimizer as a torch optimizer, and NeMo's schedule."""
        config = self.config
        megatron = build_optimizer(
            config.optim,
            list(self.chunks),
            clip_grad=config.trainer.gradient_clip_val,
            default_seed=config.model.seed,
        )
        self._optimizer = optimizer = TorchViewOfMegatron(megatron, config.optim)
        self._scheduler = build_schedule(optimizer, config.optim.sched, config.trainer.max_steps)
        return [optimizer], [self._scheduler]

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """Run one optimizer step on this rank's share of a global batch."""
        optimizer = self.optimizers()
        for chunk in self.chunks:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        nvtx = self.config.model.nsys_profile.enabled
        with named_range("forward and backward", nvtx=nvtx):
            sums = self._run_schedule(batch, forward_only=False)
        lr = optimizer.param_groups[0]["lr"]
        with named_range("optimizer", nvtx=nvtx):
            optimizer.step()
        self._count_skipped()
        self.lr_schedulers().step()
        loss = self._mean_over_ranks(sums)
        self._say(self.spikes.count(self.trainer.global_step, loss))
        metrics = {
            "reduced_train_loss": loss,
            "lr": lr,
            "grad_norm": self._optimizer.grad_norm,
            "skipped_steps": float(self.skipped.total),
            "loss_spikes": float(self.spikes.total),
            "consumed_samples": float(self.batch_schedule.consumed_after(self.trainer.global_step)),
        }
        self.log_dict(metrics, logger=False)

    def _count_skipped(self) -> None:
        # All ranks have the same norm, and stop together.
        updated, grad_norm = self._optimizer.update_successful, self._optimizer.grad_norm
        found = "" if updated else find_nonfinite_gradients(self.chunks)
        self._say(self.skipped.count(self.trainer.global_step, updated=updated, grad_norm=grad_norm, found=found))

    def _say(self, line: str | None) -> None:
        if line is not None and self.trainer.is_global_zero:
            say_above_bar(line)

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Add one global batch to the validation loss of a set."""
        sums = self._run_schedule(batch, forward_only=True)
        self._validation_sums[dataloader_idx] = self._validation_sums.get(dataloader_idx, 0) + sums

    def on_validation_epoch_end(self, sync_metrics: bool = False) -> None:
        """Log the loss and the perplexity of each set over all its batches, micro batches and data-parallel ranks."""
        endings = ["", *(f"/{name}" for name in validation_sets(self.config.data))]
        for index, sums in sorted(self._validation_sums.items()):
            loss = self._mean_over_ranks(sums)
            metrics = {f"val_loss{endings[index]}": loss, f"val_ppl{endings[index]}": math.exp(min(loss, 80.0))}
            self.log_dict(metrics, logger=False)
        self._validation_sums = {}

    def _run_schedule(self, batch: Batch, *, forward_only: bool) -> torch.Tensor:
        """Return the sum of the token losses and the number of tokens; both 0 before the last pipeline stage."""
        model = self.config.model
        micro_batches = [torch.split(tensor, model.micro_batch_size) for tensor in batch.values()]
        reports = get_forward_backward_func()(
            forward_step_func=_forward_step,
            data_iterator=(dict(zip(batch, tensors, strict=True)) for tensors in zip(*micro_batches, strict=True)),
            model=list(self.chunks),
            num_microbatches=len(micro_batches[0]),
            seq_length=model.encoder_seq_length,
            micro_batch_size=model.micro_batch_size,
            forward_only=forward_only,
        )
        sums = torch.zeros(2, device=self.device)
        for report in reports:
            sums += report["sums"]
        return sums

    def _mean_over_ranks(self, sums: torch.Tensor) -> float:
        sums = sums.to(self.device)
        torch.distributed.all_reduce(sums, group=parallel_state.get_data_parallel_group())
        torch.distributed.broadcast(
            sums,
            src=parallel_state.get_pipeline_model_parallel_last_rank(),
            group=parallel_state.get_pipeline_model_parallel_group(),
        )
        total, count = sums.tolist()
        return float(total / max(count, 1.0))

    def setup_training_data(self, train_data_config: Any) -> None:
        """Do nothing: the data module has the data."""

    def setup_validation_data(self, val_data_config: Any) -> None:
        """Do nothing: the data module has the data."""

    @classmethod
    def list_available_models(cls) -> None:
        """Return nothing: NeMo lists no pretrained weights for this class."""


def _forward_step(micro_batches: Iterator[Batch], chunk: Any) -> Any:
    batch = next(micro_batches)
    # No mask: the attention is causal, and its kernels make the mask themselves.
    output = chunk(batch["tokens"], batch["position_ids"], None, labels=batch["labels"])

    def loss_func(token_losses: torch.Tensor) -> Any:
        mask = batch["loss_mask"].float()
        total = (token_losses.float() * mask).sum()
        count = mask.sum()
        # The schedule divides the loss in place; this one is another tensor.
        return total / count.clamp(min=1.0), {"sums": torch.stack([total.detach(), count])}

    return output, loss_func
