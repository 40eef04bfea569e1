# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Saves in every layout, loads in every layout, and prints which pairs go on to the bit, as a Markdown table.

    python benchmarks/layout_matrix.py [dp1 tp2 "dp2 replicated" ...]      (layouts; all without arguments)

A run takes 3 steps in the layout of the row, saves, and takes 10 more in the layout of the column, on injected
gradients. "=": weights and moments are bit-equal to those of the run that never stopped, and every parameter's step is
right. One, two and four real gloo ranks on this machine's CPU; "replicated" is without the distributed optimizer.
"""

import argparse
import itertools
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [
    str(Path(__file__).resolve().parents[1]),
    str(Path(__file__).resolve().parents[1] / "tests/distributed"),
]

from crossings import LAYOUTS, run_crossings  # noqa: E402


def main():
    """Print the table; exit with 1 if a pair differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layouts", nargs="*", metavar="LAYOUT", help=", ".join(LAYOUTS))
    names = parser.parse_args().layouts or list(LAYOUTS)
    if unknown := [name for name in names if name not in LAYOUTS]:
        parser.error(f"layouts are {', '.join(LAYOUTS)}; got {', '.join(unknown)}")
    with tempfile.TemporaryDirectory() as folder:
        found = run_crossings(list(itertools.product(names, names)), Path(folder), timeout=3600)
    expected = found["source"][names[0]]["digest"]
    right = {pair: result == {"digest": expected, "steps": True} for pair, result in found["pair"].items()}
    print("| from \\ to | " + " | ".join(names) + " |")
    print("|---" * (len(names) + 1) + "|")
    for first in names:
        print(f"| {first} | " + " | ".join("=" if right[first, second] else "differs" for second in names) + " |")
    agree = all(source["digest"] == expected for source in found["source"].values())
    print(f"\nNever stopped: {len(names)} layouts, {'all alike' if agree else 'NOT alike'} ({expected[:12]}).")
    sys.exit(0 if agree and all(right.values()) else 1)


if __name__ == "__main__":
    main()
