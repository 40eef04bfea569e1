# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The public optimizers that the benchmarks compare with."""

import importlib
import sys


def find(name):
    """Import a peer, or say that it is not installed and return None."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.split(".")[0]:
            raise
        print(f"{name} is not installed: left out", file=sys.stderr)
        return None
