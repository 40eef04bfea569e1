# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""A rank that dies is named by those that are left, in one message."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from nemo_sr.training.heartbeat import Watch
from nemo_sr.training.launch import free_port
from nemo_sr.training.lost_peer import describe_loss, is_lost_connection

DYING = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo", init_method=sys.argv[1], rank=1, world_size=2)
dist.all_reduce(torch.ones(1))
os._exit(1)
"""


def test_what_gloo_says_of_a_rank_that_has_died_is_recognised():
    address = f"tcp://127.0.0.1:{free_port()}"
    with subprocess.Popen([sys.executable, "-c", DYING, address]) as other:
        dist.init_process_group("gloo", init_method=address, rank=0, world_size=2)
        try:
            dist.all_reduce(torch.ones(1))
            other.wait(60)
            with pytest.raises(RuntimeError) as first:
                dist.all_reduce(torch.ones(1))
            with pytest.raises(RuntimeError) as second:
                dist.all_reduce(torch.ones(1))
        finally:
            dist.destroy_process_group()
    assert is_lost_connection(first.value), first.value
    assert is_lost_connection(second.value), second.value
    assert not is_lost_connection(RuntimeError("Expected all tensors to be on the same device"))
    assert not is_lost_connection(ValueError("Connection closed by peer"))


def test_ranks_without_a_sign_are_lost_and_those_that_have_noticed_are_not():
    store = dist.HashStore()
    watches = [Watch(store, rank, 4, 8.0, speaks=False) for rank in range(4)]
    watches[0].start()
    watches[1].start()
    try:
        with ThreadPoolExecutor() as threads:  # rank 2 gives no more signs either, but says why
            found = threads.map(Watch.find_lost, [watches[0], watches[2]])
    finally:
        watches[0].stop()
        watches[1].stop()
    for lost in found:
        assert len(lost) == 1
        assert lost[0].startswith("rank 3 on ")
        assert lost[0].endswith(", step 0")


def test_the_message_says_who_why_and_what_next():
    error = RuntimeError("[/a/pair.cc:55] Connection closed by peer [127.0.0.3]:4. Look there. Bye\nmore")
    said = describe_loss(error, ["rank 1 on b, step 7"], Path("/run/checkpoints/step_00000005"))
    assert said.startswith(
        "Every rank must be there until the end; rank 1 on b, step 7: gone (Connection closed by peer [127.0.0.3]:4). "
    )
    assert said.endswith("The same command goes on from /run/checkpoints/step_00000005.")
    assert "another one is gone" in describe_loss(error, [], None)
    assert "begins anew" in describe_loss(error, [], None)
