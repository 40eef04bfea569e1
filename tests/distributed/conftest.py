# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What Megatron's ranks have found, for the tests of a file; its `kind` of model is "dense" or "experts"."""

import json
from pathlib import Path

import pytest
from gloo_ranks import run_ranks

SCRIPT = Path(__file__).with_name("megatron_rank.py")


def find(kind, num_ranks, directory):
    output = directory / "found.json"
    run_ranks(SCRIPT, num_ranks, kind, str(output), str(directory / "saved"), directory=directory, timeout=500)
    return json.loads(output.read_text())


@pytest.fixture(scope="module")
def found(kind, tmp_path_factory):
    """Findings by layout, of 1, 2 and 4 processes."""
    result = {}
    for num_ranks in (1, 2, 4):
        result.update(find(kind, num_ranks, tmp_path_factory.mktemp(f"ranks{num_ranks}")))
    return result


@pytest.fixture(scope="module")
def eight_ranks(kind, tmp_path_factory):
    """The same of eight processes."""
    return find(kind, 8, tmp_path_factory.mktemp("ranks8"))
