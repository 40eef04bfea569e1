# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What Megatron's ranks have found: one start of 1, 2 and 4 processes for all tests of this folder."""

import json
from pathlib import Path

import pytest
from gloo_ranks import run_ranks

SCRIPT = Path(__file__).with_name("megatron_rank.py")


def find(num_ranks, directory):
    output = directory / "found.json"
    run_ranks(SCRIPT, num_ranks, str(output), str(directory / "saved"), directory=directory, timeout=500)
    return json.loads(output.read_text())


@pytest.fixture(scope="session")
def everything(tmp_path_factory):
    """Findings by kind of model ("dense", "experts") and layout."""
    result = {"dense": {}, "experts": {}}
    for num_ranks in (1, 2, 4):
        found = find(num_ranks, tmp_path_factory.mktemp(f"ranks{num_ranks}"))
        for kind in result:
            result[kind].update(found[kind])
    return result


@pytest.fixture(scope="session")
def eight_ranks(tmp_path_factory):
    """The same of eight processes."""
    return find(8, tmp_path_factory.mktemp("ranks8"))
