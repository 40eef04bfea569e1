# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Which tests go to one process when pytest-xdist runs them in several: those of a file, which share its fixtures."""

import pytest

# Files that share what several starts of ranks have found.
RANKS = ("test_megatron_experts.py", "test_megatron_layouts.py")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the marks
def pytest_collection_modifyitems(items):
    for item in items:
        group = "ranks" if item.path.name in RANKS else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))
