# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What a run says of its memory when it starts."""

import re

import pytest

from nemo_sr.planning.forecast import forecast_run
from nemo_sr.training.config import compose_config
from nemo_sr.training.weights import one_process


@pytest.mark.parametrize(
    ("words", "verdict"),
    [
        (["model.num_layers=2"], r"1\.\d+ GiB|\d+\.\d MiB"),
        (["--config-name=gpt_neo_6.7b", "trainer.accelerator=cpu"], "which is too little"),
    ],
)
def test_a_run_on_the_cpu_is_compared_with_the_machines_memory(words, verdict):
    config = compose_config(words)
    config.trainer.devices = 2 if len(words) == 1 else 256
    line = forecast_run(config, 4096)
    assert re.search(r"^Planned memory: \S+ [MG]iB on the fullest rank \(weights .*, communication ", line)
    assert re.search(rf"this machine has \S+ .iB free for {config.trainer.devices} ranks.*\.$", line)
    assert re.search(verdict, line)
    assert ("too little" in line) == ("too little" in verdict)


def test_a_process_with_groups_plans_nothing_and_a_plan_that_fails_says_so():
    config = compose_config([])
    with one_process(on_cpu=True):
        assert forecast_run(config, 4096) is None
    config.model.tensor_model_parallel_size = 3  # which divides neither heads nor ranks
    line = forecast_run(config, 4096)
    assert line.startswith("Planned memory: not known, since planning failed (")
