# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What ``--help`` and ``--cfg job`` print."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from nemo_sr.training.config import DEFAULT_CONFIG, ConfigError, find_conf
from nemo_sr.training.keys import in_yaml, schema_keys
from nemo_sr.training.regimes import describe_regimes

_WIDTH = 120

_HELP = """\
usage: pretrain_gpt.py [--config-name=NAME] [group=choice ...] [key=value ...]

Pretrains a GPT with NeMo, Lightning and Megatron-core. Starting the same run again resumes it.

  python scripts/pretrain_gpt.py                                       {default}, two processes on the CPU
  python scripts/pretrain_gpt.py --config-name=gpt_neo_350m optim.name=adamw_sr data.data_prefix=PREFIX
  torchrun --nproc_per_node=8 scripts/pretrain_gpt.py --config-name=gpt_neo_350m trainer.devices=8
  srun python scripts/pretrain_gpt.py --config-name=gpt_neo_350m trainer.num_nodes=4 trainer.devices=8

configurations (--config-name=NAME):
{configs}

groups (group=choice), each a part to exchange; keys that the configuration or you set win over it:
{groups}

strategies (optim.name=NAME):
{regimes}

common keys (key=value), with their defaults where a configuration sets nothing else:
{keys}

NeMo 1.x's model.optim.KEY and model.data.KEY mean optim.KEY and data.KEY. Quote a value with commas twice:
'data.splits_string="980,20,0"'. docs/configuration.md has every key.

options:
  --config-name=NAME  the configuration to start from; {default} unless given
  --config-dir=DIR    a folder of your own configurations, found before these
  --cfg job           print every key with its value, overrides applied, and exit; --package=optim prints a part
  --help              print this and exit"""

_COMMON = (
    "trainer.accelerator",
    "trainer.devices",
    "trainer.num_nodes",
    "trainer.max_steps",
    "trainer.stop_after_steps",
    "trainer.val_check_interval",
    "exp_manager.name",
    "exp_manager.explicit_log_dir",
    "exp_manager.resume_from_checkpoint",
    "model.micro_batch_size",
    "model.global_batch_size",
    "model.tensor_model_parallel_size",
    "model.pipeline_model_parallel_size",
    "model.sequence_parallel",
    "model.seed",
    "model.tokenizer.vocab_file",
    "model.tokenizer.merge_file",
    "optim.lr",
    "optim.sr_lr_scale",
    "optim.weight_decay",
    "optim.sched.warmup_steps",
    "optim.sched.min_lr",
    "data.data_prefix",
    "data.splits_string",
)


def help_text() -> str:
    """Return what ``--help`` prints: launchers, configurations, groups, strategies, common keys, options."""
    conf = find_conf()
    groups = sorted(path for path in conf.iterdir() if path.is_dir())
    return _HELP.format(
        default=DEFAULT_CONFIG,
        configs="\n".join(f"  {path.stem:14} {_first_comment(path)}" for path in sorted(conf.glob("*.yaml"))),
        groups="\n".join(_wrap(f"{group.name:8} {', '.join(_choices(group))}", indent=11) for group in groups),
        regimes=describe_regimes(),
        keys="\n".join(_describe(name) for name in _COMMON),
    )


def _choices(group: Path) -> list[str]:
    return sorted(path.stem for path in group.glob("*.yaml"))


def _first_comment(file: Path) -> str:
    """Return the first sentence of the comment that a configuration begins with."""
    lines = file.read_text(encoding="utf-8").splitlines()
    comment = " ".join(line.removeprefix("#").strip() for line in lines[: lines.index("defaults:")])
    return comment.partition(". ")[0].removesuffix(".")


def _wrap(line: str, *, indent: int) -> str:
    return textwrap.fill(
        line,
        _WIDTH,
        initial_indent="  ",
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _describe(name: str) -> str:
    key = schema_keys()[name]
    return _beside(f"  {name}={'...' if key.default is None else key.default}", 50, key.summary)


def _beside(left: str, column: int, text: str) -> str:
    left = f"{left:{column}} "
    return left + textwrap.shorten(text, max(_WIDTH - len(left), 30), placeholder=" ...")


def show_config(config: DictConfig, package: str | None = None) -> str:
    """Return a configuration as YAML, each key with what it means as a comment.

    Args:
        config: What ``compose_config`` returned.
        package: A part of it, "optim" or "optim.sched" say; None: all of it.

    Raises:
        ConfigError: it has no such part.
    """
    part = config if package is None else OmegaConf.select(config, package)
    if not isinstance(part, DictConfig):
        parts = [key.name for key in schema_keys().values() if key.is_group]
        raise ConfigError(f"--package must be one of {', '.join(parts)}; it is {package}. Correct it or leave it out.")
    head = "# What each key means, in full: docs/configuration.md.\n" if package is None else ""
    return head + "\n".join(_lines(part, "" if package is None else f"{package}.", 0))


def _lines(node: DictConfig, prefix: str, depth: int) -> Iterator[str]:
    for name in map(str, node):
        key = schema_keys()[f"{prefix}{name}"]
        if key.is_group:
            yield _beside(f"{'  ' * depth}{name}:", 0, f" # {key.summary}")
            yield from _lines(node[name], f"{key.name}.", depth + 1)
        else:
            value = OmegaConf.to_container(node[name]) if OmegaConf.is_list(node[name]) else node[name]
            yield _beside(f"{'  ' * depth}{name}: {in_yaml(value)}", 50, f"# {key.summary}")
