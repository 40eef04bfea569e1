# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""One writer for a run's folder, and the file that stops it."""

import pytest
import torch.distributed as dist
from toy import overrides

from nemo_sr.training.config import ConfigError, compose_config
from nemo_sr.training.pretrain import _check_writer, _nothing_to_do
from nemo_sr.training.resume import Start
from nemo_sr.training.run_folder import SaveError
from nemo_sr.training.run_lock import OWNER_VARIABLE, find_other_writer, lock_file, stop_file
from nemo_sr.training.saving import CheckpointWriter


@pytest.fixture
def lock(tmp_path):
    file = lock_file(tmp_path / "run")
    file.parent.mkdir(parents=True)
    return file


@pytest.mark.parametrize(
    ("held", "mine", "owner"),
    [
        (None, "", None),
        ("12.1", "12.1", None),
        ("12.1", "", "job 12 (start 1)"),
        ("12.1", "12.0", "job 12 (start 1)"),  # a start that SLURM has replaced
        (None, "12.0", "nobody any more"),
    ],
)
def test_whose_a_run_is(lock, monkeypatch, held, mine, owner):
    if held:
        lock.write_text(f"{held}\n")
    monkeypatch.setenv(OWNER_VARIABLE, mine)
    assert find_other_writer(lock.parents[1]) == owner


def test_a_run_that_another_job_writes_is_refused(lock, tmp_path):
    config = compose_config(overrides(tmp_path / "toy", tmp_path / "run", max_steps=8))
    _check_writer(config)
    lock.write_text("12.1\n")
    with pytest.raises(
        ConfigError, match=r"A run must have one writer, and .*/jobs/lock says that it is job 12 \(start"
    ):
        _check_writer(config)


def test_a_stop_file_keeps_a_run_from_starting(lock, tmp_path):
    config = compose_config(overrides(tmp_path / "toy", tmp_path / "run", max_steps=8))
    start = Start(0, 0, {}, None, ())
    assert _nothing_to_do(config, start) is None
    stop_file(tmp_path / "run").touch()
    assert "run/stop says that this run is to stop. Remove it to go on." in _nothing_to_do(config, start)


def test_a_start_that_was_replaced_cannot_save(lock, tmp_path, monkeypatch):
    monkeypatch.setenv(OWNER_VARIABLE, "12.0")
    lock.write_text("12.0\n")
    writer = CheckpointWriter(tmp_path / "run/checkpoints", asynchronous=False, newest=2, best=1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        writer._make_room(1, 5)
        lock.write_text("12.1\n")
        with pytest.raises(SaveError, match=r"step 6 .* a run must have one writer, and that is job 12"):
            writer._make_room(1, 6)
    finally:
        dist.destroy_process_group()
    assert not (tmp_path / "run/checkpoints/partial_step_00000006").exists()
