# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What a command line tells its user: a bar on a terminal, a line per stage everywhere."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm


def stage_bar(stage: str, num_bytes: int) -> tqdm[Any]:
    """Make a progress bar over bytes, with rate and remaining time, shown on a terminal only.

    Args:
        stage: What it is about.
        num_bytes: Bytes in all, or 0 if unknown.
    """
    hidden = not sys.stderr.isatty()
    return tqdm(desc=stage, total=num_bytes or None, unit="B", unit_scale=True, leave=False, disable=hidden)


def say(message: str) -> None:
    """Write a line to standard output, at once."""
    sys.stdout.write(message + "\n")
    sys.stdout.flush()


def complain(message: str) -> None:
    """Write an error to standard error."""
    sys.stderr.write(f"error: {message}\n")
