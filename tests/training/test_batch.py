# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The global batch of every step, against Megatron-core's own calculator."""

import pytest
from toy import overrides

from nemo_sr.training.batch import BatchSchedule, describe_batch
from nemo_sr.training.config import compose_config
from nemo_sr.training.datamodule import GlobalBatchSampler

RAMPS = [(16, 8, 8, 24), (64, 8, 8, 1000), (96, 32, 64, 7), (48, 16, 16, 333), (16, 16, 1, 0)]


@pytest.mark.parametrize(("full", "start", "increment", "samples"), RAMPS)
def test_every_batch_is_megatrons(full, start, increment, samples):
    from megatron.core.num_microbatches_calculator import (
        ConstantNumMicroBatchesCalculator,
        RampupBatchsizeNumMicroBatchesCalculator,
    )

    schedule = BatchSchedule(full, start, increment, samples)
    if start == full:
        theirs = ConstantNumMicroBatchesCalculator(full, 4, 2, False, 1)
    else:
        theirs = RampupBatchsizeNumMicroBatchesCalculator(full, 4, 2, False, 1, start, increment, samples)
    consumed = [0]
    while consumed[-1] < samples + 3 * full:
        theirs.update(consumed[-1], True)
        assert schedule.batch_after(consumed[-1]) == theirs.get_current_running_global_batch_size()
        consumed.append(consumed[-1] + theirs.get_current_running_global_batch_size())
    assert [schedule.consumed_after(step) for step in range(len(consumed))] == consumed
    last = len(consumed) - 1
    assert schedule.mean_share(0, last) == pytest.approx(consumed[-1] / last / full)
    assert schedule.mean_share(last - 1, last) == 1.0
    for step in (0, 1, len(consumed) // 2):
        batches = list(schedule.batches(consumed[step], consumed[-1]))
        assert len(batches) == schedule.num_batches(consumed[step], consumed[-1]) == len(consumed) - 1 - step
        assert schedule.num_batches(consumed[step], consumed[-1] - 1) == len(batches) - 1


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_growing_batch_reads_every_sample_once_on_any_number_of_ranks_and_after_a_resume(num_ranks):
    schedule = BatchSchedule(16, 4, 4, 24)

    def read(consumed):
        steps = []
        for rank in range(num_ranks):
            options = {"schedule": schedule, "micro_batch_size": 2, "rank": rank, "num_ranks": num_ranks}
            for step, indices in enumerate(GlobalBatchSampler(76, consumed_samples=consumed, **options)):
                steps[step : step + 1] = [sorted([*(steps[step] if rank else []), *indices])]
        return steps

    whole = read(0)
    assert [len(step) for step in whole] == [4, 4, 8, 12, 16, 16, 16]
    assert [index for step in whole for index in step] == list(range(76))
    assert read(16) == whole[3:]


def test_the_batch_is_described(toy_prefix, tmp_path):
    words = overrides(toy_prefix, tmp_path / "run", max_steps=20)
    config = compose_config([*words, "model.global_batch_size=256", "trainer.devices=4"])
    assert describe_batch(config) == "Global batch 256 = 4 micro x 4 data-parallel x 16 accumulation."
    config = compose_config([*words, "model.rampup_batch_size=[8,8,20]", "model.global_batch_size=24"])
    described = (
        "Global batch 24 = 4 micro x 2 data-parallel x 3 accumulation; it grows from 8 by 8 and is full from step 4"
    )
    assert describe_batch(config) == f"{described} on."
