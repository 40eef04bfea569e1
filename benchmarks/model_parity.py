# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Compares GPT-2 and GPT-Neo on Megatron-core with transformers' in four layouts, and counts the configured models.

    python benchmarks/model_parity.py

Small random models in FP32: 4 layers, 64 wide, a vocabulary of 257 padded to 384 rows (512 under TP2), weights of
padding set to 3, 40 tokens a sample and a window of 8. Printed are the largest difference of a logit (they go up to 5),
the difference of the mean losses, and the largest difference of a gradient over the largest of its tensor. Then the
parameters of the Megatron models of conf/, built without memory, with GPT-2's 50,257 tokens and no padding. Four gloo
ranks on this machine's CPU.
"""

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/distributed"), str(ROOT / "tests/models")]

from parity import run_parity  # noqa: E402
from parity_rank import LAYOUTS, VARIANTS  # noqa: E402


def main():
    """Print both tables."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = run_parity(4, Path(folder))
    print("| model | layout | logits | loss | gradients |\n|---|---|---|---|---|")
    for variant in VARIANTS:
        for layout in LAYOUTS:
            result = found[layout][variant]
            numbers = " | ".join(f"{result[key]:.1e}" for key in ("logits", "loss", "gradients"))
            print(f"| {variant} | {layout} | {numbers} |")
    print("\n| configuration | parameters |\n|---|---|")
    for name, number in sorted(found["parameters"].items(), key=lambda entry: entry[1]):
        print(f"| {name} | {number:,} |")


if __name__ == "__main__":
    main()
