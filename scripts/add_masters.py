# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Turns a checkpoint of adamw_sr into one that Megatron's own Adam loads: python scripts/add_masters.py FROM TO."""

import argparse
import sys
from pathlib import Path


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, help="a checkpoint of adamw_sr (Megatron-core's torch_dist format)")
    parser.add_argument("target", type=Path, help="folder of the new checkpoint, which must not exist")
    options = parser.parse_args()
    from nemo_sr.megatron.masters import add_masters

    try:
        add_masters(options.source, options.target)
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    print(
        f"{options.target}: loads with Megatron's Adam under --dist-ckpt-optim-fully-reshardable. Lower the maximum "
        "learning rate to what mixed precision takes: a half to a quarter."
    )


if __name__ == "__main__":
    main()
