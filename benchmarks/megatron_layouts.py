# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Which parallel layouts give the same bits: SHA-256 of weights and moments after ten steps, as a Markdown table.

    python benchmarks/megatron_layouts.py

Real gloo ranks train a small GPT of the tests from injected gradients of the whole model. A cell has the first digits
of the hash of all weights and moments, gathered from all ranks; a column should have one hash.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

from megatron_gpt import is_rank, megatron_on_cpu, run_on_ranks

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "distributed"))

LAYOUTS = {
    1: {"1 rank": {}, "1 rank, no distributed optimizer": {"distributed": False}},
    2: {
        "DP 2": {},
        "DP 2, no distributed optimizer": {"distributed": False},
        "TP 2": {"tp": 2},
        "TP 2, no distributed optimizer": {"tp": 2, "distributed": False},
        "PP 2": {"pp": 2},
        "PP 2, two virtual stages": {"pp": 2, "vp": 2},
    },
    4: {
        "DP 4": {},
        "DP 4, two optimizer instances": {"instances": 2},
        "TP 4": {"tp": 4},
        "PP 4": {"pp": 4},
        "TP 2, PP 2": {"tp": 2, "pp": 2},
        "DP 2, TP 2": {"tp": 2},
        "DP 2, PP 2": {"pp": 2},
    },
}
MODELS = {
    "GPT, tied embedding": {},
    "vocabulary 257": {"vocabulary": 257},
    "SwiGLU": {"swiglu": True},
    "FP32 gradients": {"grad_in_fp32": True},
}


def ten_steps(gpt, options):
    """Return the digest of weights and moments after ten steps from injected gradients."""
    model = gpt.build_model(**options)
    gpt.set_weights(model)
    optimizer = gpt.build_optimizer(model)
    for step in range(10):
        gpt.inject_gradients(model, step)
        optimizer.step()
    return gpt.digest(gpt.gathered(model, optimizer))


def main():
    """Print the table."""
    if is_rank():
        with megatron_on_cpu():
            import tiny_gpt as gpt

            world = int(os.environ["WORLD_SIZE"])
            found = {
                layout: [ten_steps(gpt, {"layers": 4, **options, **model}) for model in MODELS.values()]
                for layout, options in LAYOUTS[world].items()
            }
            if os.environ["RANK"] == "0":
                Path(sys.argv[1]).write_text(json.dumps(found))
        return
    print(f"| layout | {' | '.join(MODELS)} |\n|---|{'---|' * len(MODELS)}", flush=True)
    columns = [set() for _ in MODELS]
    with tempfile.TemporaryDirectory() as folder:
        for world in LAYOUTS:
            output = Path(folder) / "found.json"
            run_on_ranks(world, str(output))
            for layout, digests in json.loads(output.read_text()).items():
                print(f"| {layout} | {' | '.join(digest[:12] for digest in digests)} |", flush=True)
                for column, digest in zip(columns, digests, strict=True):
                    column.add(digest)
    if any(len(column) > 1 for column in columns):
        sys.exit("layouts differ")


if __name__ == "__main__":
    main()
