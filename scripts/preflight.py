#!/usr/bin/env python
# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What slurm/run.slurm runs first, where the ranks will run: names missing packages, then checks the job."""

import importlib.util
import sys


def find_missing() -> list[str]:
    """Return the packages that training imports and this Python has not."""
    packages = ("torch", "megatron.core", "nemo", "lightning", "hydra", "omegaconf", "nemo_sr")
    missing = []
    for package in packages:
        try:
            found = importlib.util.find_spec(package)
        except ModuleNotFoundError:  # not even its parent is there
            found = None
        if found is None:
            missing.append(package)
    return missing


if __name__ == "__main__":
    if missing := find_missing():
        print(
            f"error: Training needs packages that {sys.executable} has not: {', '.join(missing)}. Install nemo_sr with "
            "its extras [megatron,nemo], or run in an image that has them (docker/README.md).",
            file=sys.stderr,
        )
        sys.exit(2)
    if sys.argv[1:] == ["--missing"]:  # nothing is, and that was the question
        sys.exit(0)
    from nemo_sr.training.preflight import main

    sys.exit(main(sys.argv[1:]))
