# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Runs triton_interpreted.py in a process of its own, in which Triton's interpreter is on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip(
    "triton", minversion="3.6", reason="Triton's interpreter needs the package triton, which exists for Linux only"
)

CASES = sorted(map(str, Path(__file__).parent.glob("triton_interpreted*.py")))


def test_the_kernel_in_the_interpreter_against_the_reference():
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *CASES],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert " passed" in result.stdout
    assert "skipped" not in result.stdout
