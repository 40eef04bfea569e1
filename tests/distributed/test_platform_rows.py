# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Every stand-in of the CPU platform is needed: without it, something of Megatron-core that runs here does not."""

import json
from pathlib import Path

import pytest
from gloo_ranks import run_ranks

SCRIPT = Path(__file__).with_name("platform_rank.py")


@pytest.mark.slow
def test_without_any_one_stand_in_something_fails(tmp_path):
    output = tmp_path / "found.json"
    run_ranks(SCRIPT, 2, str(output), str(tmp_path / "saved"), directory=tmp_path, timeout=580)
    found = json.loads(output.read_text())
    complete = {label: failure for label, failure in found.items() if label.startswith("none")}
    assert len(complete) == 3
    assert set(complete.values()) == {None}
    one_missing = found.keys() - complete.keys()
    assert len(one_missing) == 18  # the stand-ins, and the function mode
    assert not [label for label in one_missing if found[label] is None]
