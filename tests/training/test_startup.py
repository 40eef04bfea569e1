# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What a start-up costs: no torch before the ranks, and a timeline that adds up."""

import subprocess
import sys
import time

import pytest
from toy import environment, overrides

import nemo_sr
from nemo_sr.training.startup import BEGAN, Timeline

CHECK = """
import sys
from nemo_sr.training import pretrain
config = pretrain.compose_config(sys.argv[1:])
pretrain.check_config(config)
assert pretrain.find_start(config).checkpoint is None
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_a_command_line_is_checked_without_torch(toy_prefix, tmp_path):
    words = overrides(toy_prefix, tmp_path / "run", max_steps=20)
    command = [sys.executable, "-c", CHECK, *words]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    imported = done.stdout.split()
    assert "hydra" in imported
    assert not {"torch", "megatron", "nemo", "lightning", "transformers"} & set(imported)


def test_every_public_name_is_there_when_asked_for():
    for name in nemo_sr.__all__:
        assert getattr(nemo_sr, name).__module__.startswith("nemo_sr.")
    assert nemo_sr.rounding.round_stochastic is nemo_sr.round_stochastic
    assert set(nemo_sr.__all__) < set(dir(nemo_sr))
    with pytest.raises(AttributeError, match="has no attribute 'round_up'"):
        _ = nemo_sr.round_up


def test_a_timeline_has_every_second_in_one_phase():
    timeline = Timeline(100.0)
    for phase, now in (("imports", 103.0), ("model", 103.5), ("imports", 105.0), ("first step", 107.0)):
        timeline.end(phase, now)
    assert timeline.seconds == {"imports": 4.5, "model": 0.5, "first step": 2.0}
    assert str(timeline) == "Start-up: imports 4.5 s, model 0.5 s, first step 2.0 s; 7.0 s in all."
    assert timeline.began == 100.0


def test_a_ranks_timeline_begins_with_the_command():
    now = time.time()
    alone = Timeline.of_process({})
    assert 0 <= now - alone.began < 3600
    rank = Timeline.of_process({BEGAN: str(alone.began - 5.0)})
    assert rank.seconds["launcher"] == pytest.approx(5.0, abs=0.05)
