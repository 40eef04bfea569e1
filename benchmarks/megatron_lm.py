# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Megatron-LM's own pretrain_gpt.py on two ranks of a CPU, with its Adam (FP32 masters) and with adamw_sr.

    python benchmarks/megatron_lm.py MEGATRON_LM [--iterations 50] [--only "PP 2"]

MEGATRON_LM is a checkout of NVIDIA's repository (core_v0.16.1), which needs the package six. Prints the losses that the
program logs, side by side, for data, tensor and pipeline parallelism.
"""

import argparse
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

MODEL = """--num-layers 4 --hidden-size 128 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128
--vocab-size 512 --tokenizer-type NullTokenizer --mock-data --attention-dropout 0 --hidden-dropout 0 --num-workers 0"""
STEP = """--bf16 --optimizer adam --use-distributed-optimizer --micro-batch-size 4 --global-batch-size 16 --lr 1e-3
--min-lr 1e-4 --lr-decay-style cosine --lr-warmup-iters 5 --weight-decay 0.1 --adam-beta2 0.95 --clip-grad 1.0"""
CPU = """--distributed-backend gloo --transformer-impl local --no-gradient-accumulation-fusion
--no-masked-softmax-fusion --no-persist-layer-norm --no-rope-fusion"""
LAYOUTS = {"DP 2": "", "TP 2": "--tensor-model-parallel-size 2", "PP 2": "--pipeline-model-parallel-size 2"}
OPTIMIZERS = {
    "Adam, FP32 masters": ["benchmarks/megatron_lm.py", "--as-it-is"],
    "adamw_sr, FP32 gradients": ["-m", "nemo_sr.megatron.run", "--cpu"],
    "adamw_sr, BF16 gradients": ["-m", "nemo_sr.megatron.run", "--cpu", "--sr-grad-dtype", "bf16"],
}
ROOT = Path(__file__).parents[1]


def main():
    """Print the table, or run the program as a rank."""
    if sys.argv[1:2] == ["--as-it-is"]:
        run_as_it_is(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("megatron_lm", type=Path)
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--only", default="", help="rows that have this in their first two columns")
    options = parser.parse_args()
    shown = [*sorted({1, options.iterations, *range(10, options.iterations, 10)}), "validation"]
    print("| layout | optimizer |", " | ".join(map(str, shown)), "|")
    print("|---|---|" + "---|" * len(shown), flush=True)
    for layout, flags in LAYOUTS.items():
        for optimizer, start in OPTIMIZERS.items():
            if options.only not in f"{layout} | {optimizer}":
                continue
            arguments = [*MODEL.split(), *STEP.split(), *CPU.split(), *flags.split()]
            found = losses(start, options.megatron_lm / "pretrain_gpt.py", arguments, options)
            print(f"| {layout} | {optimizer} |", " | ".join(f"{found[key]:.4f}" for key in shown), "|", flush=True)


def losses(start, program, arguments, options):
    """Run it and return the losses that it logged, by iteration, and that of the validation at the end."""
    schedule = f"--train-iters {options.iterations} --log-interval 1 --eval-interval 1000 --eval-iters 4".split()
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    result = subprocess.run(
        [*launcher, *start, str(program.resolve()), *arguments, *schedule],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        sys.exit(f"{result.stdout[-3000:]}{result.stderr[-3000:]}\n{program} ended with status {result.returncode}")
    found = {int(i): float(loss) for i, loss in re.findall(r"iteration +(\d+)/.*?lm loss: (\S+)", result.stdout)}
    found["validation"] = float(re.search(r"on validation set \| lm loss value: (\S+)", result.stdout)[1])
    return found


def run_as_it_is(words):
    """Run Megatron-LM's program on the CPU with the optimizer that it has."""
    from nemo_sr.megatron.run_cpu import megatron_lm_on_cpu

    sys.argv = words
    sys.path[0] = os.path.dirname(words[0])
    with megatron_lm_on_cpu():
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
