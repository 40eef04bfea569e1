# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""How many samples each step takes: the global batch, its ramp-up, and how it is cut. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from omegaconf import DictConfig


@dataclass(frozen=True)
class BatchSchedule:
    """The global batch of every step.

    It follows from the samples that were consumed, as in Megatron-core's num_microbatches_calculator. From `start` it
    grows by `increment` after each equal share of `ramp_samples`, until it is `full`.
    """

    full: int
    start: int
    increment: int
    ramp_samples: int

    @classmethod
    def of(cls, model: DictConfig) -> BatchSchedule:
        """Return the schedule of the ``model`` part of a checked configuration."""
        start, increment, samples = model.rampup_batch_size or (model.global_batch_size, 1, 0)
        return cls(model.global_batch_size, start, increment, samples)

    def batch_after(self, consumed_samples: int) -> int:
        """Return the global batch of the step that begins after so many samples."""
        if consumed_samples > self.ramp_samples or self.start == self.full:
            return self.full
        # A float, rounded down after the division: as Megatron-core has it.
        share = self.ramp_samples / ((self.full - self.start) // self.increment)
        return self.start + int(consumed_samples / share) * self.increment

    def batches(self, consumed_samples: int, num_samples: int) -> Iterator[int]:
        """Yield the global batches of the steps from `consumed_samples` on, as long as `num_samples` suffice."""
        while consumed_samples + (batch := self.batch_after(consumed_samples)) <= num_samples:
            yield batch
            consumed_samples += batch

    def consumed_after(self, num_steps: int) -> int:
        """Return the samples that the first steps of a run take. Every step asks for it."""
        num_ramp_steps = len(self._consumed_in_ramp) - 1
        if num_steps <= num_ramp_steps:
            return self._consumed_in_ramp[num_steps]
        return self._consumed_in_ramp[-1] + (num_steps - num_ramp_steps) * self.full

    @cached_property
    def _consumed_in_ramp(self) -> list[int]:
        """Samples consumed before the first step and after each one that may be smaller than the full batch."""
        consumed = [0]
        while consumed[-1] <= self.ramp_samples and self.start != self.full:
            consumed.append(consumed[-1] + self.batch_after(consumed[-1]))
        return consumed

    def mean_share(self, first: int, last: int) -> float:
        """Return the mean batch of the steps after `first` and up to `last`, as a share of the full one."""
        return (self.consumed_after(last) - self.consumed_after(first)) / ((last - first) * self.full)

    def num_batches(self, consumed_samples: int, num_samples: int) -> int:
        """Return how many steps :meth:`batches` yields."""
        steps = 0
        while consumed_samples <= self.ramp_samples and self.start != self.full:
            consumed_samples += self.batch_after(consumed_samples)
            if consumed_samples > num_samples:
                return steps
            steps += 1
        return steps + max(num_samples - consumed_samples, 0) // self.full


def num_data_parallel(config: DictConfig) -> int:
    """Return the number of data-parallel ranks."""
    model, trainer = config.model, config.trainer
    ranks = trainer.devices * trainer.num_nodes
    return int(ranks // (model.tensor_model_parallel_size * model.pipeline_model_parallel_size))


def describe_batch(config: DictConfig) -> str:
    """Return a line that says how the global batch of a checked configuration is cut, and how it grows."""
    model, ranks = config.model, num_data_parallel(config)
    accumulated = model.global_batch_size // (model.micro_batch_size * ranks)
    line = (
        f"Global batch {model.global_batch_size} = {model.micro_batch_size} micro x {ranks} data-parallel x "
        f"{accumulated} accumulation"
    )
    schedule = BatchSchedule.of(model)
    if schedule.start == schedule.full:
        return f"{line}."
    # Enough for the ramp and the step after it.
    batches = schedule.batches(0, schedule.ramp_samples + 2 * schedule.full)
    first_full = next(step for step, batch in enumerate(batches, 1) if batch == schedule.full)
    return f"{line}; it grows from {schedule.start} by {schedule.increment} and is full from step {first_full} on."
