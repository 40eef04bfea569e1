# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Megatron-core's GPT datasets as a Lightning data module, in an order that a resumed run continues."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from megatron.core import parallel_state
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDataset
from omegaconf import DictConfig
from torch.utils.data import DataLoader

from nemo_sr.training.batch import BatchSchedule
from nemo_sr.training.config import ConfigError
from nemo_sr.training.resume import fingerprint_data
from nemo_sr.training.tokenizer import GPT2BPETokenizer
from nemo_sr.training.validate import prefixes
from nemo_sr.training.validation_sets import validation_sets


class GlobalBatchSampler:
    """Yields this data-parallel rank's share of one global batch after another.

    A global batch is the same set of samples, cut into micro batches in the same order, for any number of ranks.

    Args:
        num_samples: Samples in all.
        consumed_samples: Samples that earlier steps used; the first batch starts behind them.
        schedule: Samples of each step, over all ranks.
        micro_batch_size: Samples of one rank in one micro batch.
        rank: Data-parallel rank.
        num_ranks: Data-parallel ranks.
    """

    def __init__(
        self,
        num_samples: int,
        *,
        consumed_samples: int,
        schedule: BatchSchedule,
        micro_batch_size: int,
        rank: int,
        num_ranks: int,
    ) -> None:
        self.num_samples = num_samples
        self.consumed_samples = consumed_samples
        self.schedule = schedule
        self.micro_batch_size = micro_batch_size
        self.rank = rank
        self.num_ranks = num_ranks

    def __len__(self) -> int:
        """Return the number of whole global batches that are left."""
        return self.schedule.num_batches(self.consumed_samples, self.num_samples)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the indices of this rank's samples in each global batch, micro batch after micro batch."""
        start = self.consumed_samples
        for batch in self.schedule.batches(start, self.num_samples):
            yield [
                start + (micro * self.num_ranks + self.rank) * self.micro_batch_size + sample
                for micro in range(batch // (self.micro_batch_size * self.num_ranks))
                for sample in range(self.micro_batch_size)
            ]
            start += batch


class GPTDataModule(LightningDataModule):  # type: ignore[misc]
    """Training and validation data of a run.

    Args:
        config: The whole configuration.
        tokenizer: The tokenizer that made the data.
        plan: The order of the samples, see ``resume.plan_data``.
        consumed_samples: Training samples that earlier steps used.
    """

    def __init__(
        self, config: DictConfig, tokenizer: GPT2BPETokenizer, plan: dict[str, Any], consumed_samples: int
    ) -> None:
        super().__init__()
        self.config = config
        self.tokenizer = tokenizer
        self.plan = plan
        self.consumed_samples = consumed_samples
        self.datasets: list[Any] = []

    def setup(self, stage: str | None = None) -> None:
        """Build the datasets; global rank 0 makes the sample indices, the others read them."""
        data = self.config.data
        paths, weights = prefixes(data.data_prefix)
        dataset_config = self._dataset_config(paths, weights, data.splits_string, self.plan["data_fingerprint"])
        for path in paths:
            self._check_splits(path, dataset_config.split_matrix)
        num_valid = max(1, self.plan["valid_samples"])
        self.datasets = self._build([self.plan["train_samples"], num_valid, 1], dataset_config)[:2]
        if self.config.trainer.limit_val_batches:
            for path in validation_sets(data).values():
                whole = self._dataset_config([path], None, "0,1,0", fingerprint_data([path]))
                self.datasets.append(self._build([1, num_valid, 1], whole)[1])

    @staticmethod
    def _build(sizes: list[int], dataset_config: Any) -> list[Any]:
        built: list[Any] = BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, dataset_config).build()
        return built

    def _dataset_config(self, paths: list[str], weights: list[float] | None, split: str, fingerprint: str) -> Any:
        data, model = self.config.data, self.config.model
        # One folder for each state of the data: Megatron-core would give new data the order of the old.
        cache = Path(data.index_mapping_dir or Path(paths[0]).parent / "index_cache") / fingerprint
        return GPTDatasetConfig(
            random_seed=model.seed,
            sequence_length=model.encoder_seq_length,
            blend=(paths, weights),
            split=split,
            path_to_cache=str(cache),
            tokenizer=self.tokenizer,
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=data.eod_mask_loss,
            create_attention_mask=False,
        )

    def train_dataloader(self) -> Any:
        """Return the training batches that are left."""
        schedule = BatchSchedule.of(self.config.model)
        return self._loader(self.datasets[0], self.plan["train_samples"], self.consumed_samples, schedule)

    def val_dataloader(self) -> Any:
        """Return the validation batches of every set, the same ones every time."""
        if self.config.trainer.limit_val_batches == 0:
            return []
        full = self.config.model.global_batch_size
        schedule = BatchSchedule(full, full, 1, 0)
        num_samples = self.config.trainer.limit_val_batches * full
        return [self._loader(dataset, num_samples, 0, schedule) for dataset in self.datasets[1:]]

    def _loader(self, dataset: Any, num_samples: int, consumed_samples: int, schedule: BatchSchedule) -> Any:
        sampler = GlobalBatchSampler(
            num_samples,
            consumed_samples=consumed_samples,
            schedule=schedule,
            micro_batch_size=self.config.model.micro_batch_size,
            rank=parallel_state.get_data_parallel_rank(),
            num_ranks=parallel_state.get_data_parallel_world_size(),
        )
        return DataLoader(
            dataset,
            batch_sampler=sampler,
            num_workers=self.config.data.num_workers,
            pin_memory=self.config.trainer.accelerator == "gpu",
            # Its own generator: an iterator draws a seed, which would shift the dropout of a resumed run.
            generator=torch.Generator().manual_seed(self.config.model.seed),
        )

    def _check_splits(self, path: str, split_matrix: Any) -> None:
        num_documents = len(IndexedDataset(path).sequence_lengths)
        splits = ["training"] + (["validation"] if self.config.trainer.limit_val_batches else [])
        for split, bounds in zip(splits, split_matrix, strict=False):
            if bounds is None or round(bounds[0] * num_documents) == round(bounds[1] * num_documents):
                raise ConfigError(
                    f"data.splits_string must leave at least one document for {split}; it is "
                    f"'{self.config.data.splits_string}' and {path} holds {num_documents} documents. Change "
                    "data.splits_string, or set trainer.limit_val_batches=0 to train without validation."
                )
