# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Brings a checkout's C library up to date, as installing it anew would, before any test runs."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_sr.kernels import cpu_backend

ROOT = Path(__file__).parents[2]
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")

if cpu_backend.why_not_cpu() is not None and cpu_backend.SOURCES.is_dir() and COMPILER:
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    cpu_backend.load.cache_clear()


@pytest.fixture(params=cpu_backend.PATHS)
def path(request):
    """One of the library's instruction sets."""
    library = cpu_backend.load(cpu_backend.LIBRARY)
    if isinstance(library, str):
        if COMPILER:
            pytest.fail(library)
        pytest.skip(library)
    if request.param not in library.paths:
        pytest.skip(f"this processor runs {', '.join(library.paths)} alone")
    return request.param
