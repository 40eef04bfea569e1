# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The command line of scripts/plan.py."""

from __future__ import annotations

import argparse
import json
import math
import sys
import warnings
from collections.abc import Sequence

from omegaconf import DictConfig

from nemo_sr.data.vocabulary import Vocabulary
from nemo_sr.planning.throughput import GPUS, describe_model
from nemo_sr.training.config import ConfigError, compose_config, rewrite_argv
from nemo_sr.training.regimes import find_regime
from nemo_sr.training.validate import check_layout, tokenizer_files
from nemo_sr.training.values import check_values

GPT2_TOKENS = 50257

_DESCRIPTION = """\
Tells before a job is queued what it needs in bytes per rank and whether that fits, for every strategy, and which
layouts fit. Nothing runs on a GPU: each rank's real Megatron model is built and run on torch's meta device.

  plan.py --config-name=gpt_neo_6.7b --gpus 64 --gpu-memory 80
  plan.py --config-name=gpt_neo_1.3b --gpus 8 --gpu-memory 40 optim.name=adamw model.micro_batch_size=4 --json

Every other word is as for pretrain_gpt.py. Exit status: 0 if the configured layout fits, 1 if not, 2 for a command line
that cannot be planned.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="plan.py",
        usage="plan.py [--config-name=NAME] [--gpus N] [--gpu-memory GIB] [options] [key=value ...]",
        description=_DESCRIPTION,
        epilog=describe_model(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--gpus", type=int, help="GPUs of the job (trainer.devices * trainer.num_nodes)")
    parser.add_argument("--gpus-per-node", type=int, default=8, help="of a node, with --gpus (8)")
    parser.add_argument("--gpu-memory", type=float, default=80.0, metavar="GIB", help="memory of a GPU in GiB (80)")
    parser.add_argument("--reserve", type=float, default=4.0, metavar="GIB", help="of it for CUDA, NCCL, gaps (4)")
    parser.add_argument("--gpu", choices=tuple(GPUS), default="a100", help="whose speed the estimates take (a100)")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="layouts to list; 0 looks for none (10)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables, sizes in bytes")
    args, words = parser.parse_known_args(argv)
    warnings.filterwarnings("ignore", module=r"(megatron|torch|nemo_sr)\b")
    try:
        _check_options(args)
        config = compose_config(rewrite_argv(words))
        if args.gpus is not None:
            _set_gpus(config, args.gpus, args.gpus_per_node)
        find_regime(config.optim)
        check_values(config)
        check_layout(config)
        vocab_size = _count_tokens(config)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 2
    return _print(config, vocab_size, args)


def _print(config: DictConfig, vocab_size: int, args: argparse.Namespace) -> int:
    from rich.console import Console

    from nemo_sr.planning.plan import GIB, make_plan
    from nemo_sr.planning.report import print_plan, verdict

    fused = config.trainer.accelerator == "gpu" and config.model.transformer_engine is not False
    plan = make_plan(
        config,
        vocab_size,
        fused_attention=fused,
        memory=args.gpu_memory * GIB,
        reserve=args.reserve * GIB,
        gpu=args.gpu,
        num_candidates=args.top,
    )
    fits = plan.fits(plan.own.largest)
    if args.json:
        print(json.dumps(plan.as_dict(), indent=1))  # noqa: T201
    else:
        console = Console()
        print_plan(plan, Console(width=max(console.width, 132)))
    if not fits:
        print(f"warning: {verdict(plan)}", file=sys.stderr)  # noqa: T201
    return 0 if fits else 1


def _check_options(args: argparse.Namespace) -> None:
    for option, value, least in (
        ("--gpus", args.gpus, 1),
        ("--gpus-per-node", args.gpus_per_node, 1),
        ("--reserve", args.reserve, 0),
        ("--top", args.top, 0),
    ):
        if value is not None and not least <= value < math.inf:
            raise ConfigError(f"{option} must be at least {least}; it is {value}. Give {option} another value.")
    if not args.reserve < args.gpu_memory < math.inf:
        raise ConfigError(
            f"--gpu-memory must be above --reserve, in GiB; they are {args.gpu_memory:g} and {args.reserve:g}. Change "
            "one of them."
        )


def _set_gpus(config: DictConfig, gpus: int, gpus_per_node: int) -> None:
    devices = min(gpus, gpus_per_node)
    if gpus % devices:
        raise ConfigError(
            f"--gpus must be a multiple of --gpus-per-node, or less; they are {gpus} and {gpus_per_node}. Change "
            "one of them."
        )
    config.trainer.devices, config.trainer.num_nodes = devices, gpus // devices


def _count_tokens(config: DictConfig) -> int:
    """Return the tokenizer's number of tokens; GPT-2's where its files are not here and not asked for."""
    files = tokenizer_files(config.data, config.model)
    asked = config.model.tokenizer.vocab_file or config.model.tokenizer.merge_file
    if not asked and not all(file.is_file() for file in files.values()):
        return GPT2_TOKENS
    try:
        return len(Vocabulary.read(*files.values()))
    except (OSError, ValueError) as error:
        raise ConfigError(f"model.tokenizer: {error}") from None
