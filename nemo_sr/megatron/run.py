# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Start a training program that asks Megatron-core for Adam, Megatron-LM's pretrain_gpt.py for one, with adamw_sr.

``torchrun ... -m nemo_sr.megatron.run [options] pretrain_gpt.py ...``: the program is not changed, and sees its
arguments and ``sys.path`` as if Python had started it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import runpy
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from nemo_sr.noise import validate_seed
from nemo_sr.words import ROUNDINGS

_OPTIONS = ("sr_seed", "sr_exp_avg_rounding", "sr_exp_avg_sq_rounding", "sr_grad_dtype")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the program.

    Args:
        argv: Options, the program's file, and its arguments. ``sys.argv[1:]`` if None.

    Raises:
        SystemExit: with status 2 if the options are wrong, with 1 if the program ended without having made adamw_sr, or
            as the program ended.
    """
    parser = _make_parser()
    options = parser.parse_args(argv)
    _check(parser, options)
    sys.argv = [options.program, *options.arguments]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.path.dirname(os.path.abspath(options.program))
    with contextlib.ExitStack() as stack:
        if options.cpu:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before torch initialises CUDA
            from nemo_sr.megatron.run_cpu import megatron_lm_on_cpu

            stack.enter_context(megatron_lm_on_cpu())
        # Imports Megatron-core, which is the program's own where its folder has one.
        from nemo_sr.megatron.substitution import adam_replaced

        given = {name: getattr(options, name) for name in _OPTIONS if getattr(options, name) is not None}
        made = stack.enter_context(adam_replaced(**given))
        try:
            runpy.run_path(options.program, run_name="__main__")
        except SystemExit as end:
            if end.code or {"-h", "--help"}.intersection(options.arguments):
                raise
        if not made:
            _exit_without_optimizer(options.program)


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nemo_sr.megatron.run",
        usage="%(prog)s [options] program.py [its arguments]",
        description="Run a training program of Megatron's, unchanged, with adamw_sr (AdamW with stochastic rounding) "
        "in the place of the Adam that it asks for. Start it with torchrun -m nemo_sr.megatron.run.",
        epilog="Options go before the program. It must make its optimizer with Megatron-core's "
        "get_megatron_optimizer and train in BF16 (Megatron-LM: --bf16 --optimizer adam).",
        allow_abbrev=False,
    )
    parser.add_argument("--sr-seed", type=_seed, metavar="N", help="seed of the rounding, 0 to 2**64 - 1 (default: 0)")
    for moment, default in (("exp_avg", "nearest"), ("exp_avg_sq", "stochastic")):
        parser.add_argument(
            f"--sr-{moment.replace('_', '-')}-rounding",
            choices=ROUNDINGS,
            help=f"how {moment} is rounded to BF16 (default: {default})",
        )
    parser.add_argument(
        "--sr-grad-dtype",
        choices=("bf16", "fp32"),
        help="type of the gradient buffers (default: what the program says; Megatron-LM's is fp32 unless "
        "--grad-reduce-in-bf16)",
    )
    parser.add_argument(
        "--cpu", action="store_true", help="run on the CPU, over gloo (Megatron-LM: --distributed-backend gloo)"
    )
    parser.add_argument("program", help="file of the training program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    return parser


def _check(parser: argparse.ArgumentParser, options: Any) -> None:
    if not os.path.isfile(options.program):
        parser.error(f"the program must be a file; {options.program} is none. Give its path.")
    ours = {name for action in parser._actions for name in action.option_strings if name.startswith("--sr-")}
    if misplaced := [word for word in options.arguments if word.split("=")[0] in ours]:
        parser.error(f"options must stand before the program; {misplaced[0]} stands behind it. Move it.")
    if not options.cpu and not torch.cuda.is_available():
        parser.error("training needs a GPU, and torch sees none. Add --cpu to train on the CPU.")


def _seed(text: str) -> int:
    try:
        seed = int(text)
        validate_seed(seed)
    except (TypeError, ValueError):
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 2**64 - 1; got {text!r}") from None
    return seed


def _exit_without_optimizer(program: str) -> NoReturn:
    sys.exit(
        f"error: {program} must make its optimizer with megatron.core.optimizer.get_megatron_optimizer; it ended "
        "without having called it, so nothing was trained with adamw_sr. Start it without nemo_sr.megatron.run, or "
        "build the optimizer with that function."
    )


if __name__ == "__main__":
    main()
