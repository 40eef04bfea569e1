# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Which values the keys of a configuration may take, each on its own."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from omegaconf import DictConfig, OmegaConf

from nemo_sr.models.architectures import ARCHITECTURES
from nemo_sr.training.config import ConfigError
from nemo_sr.training.keys import schema_keys
from nemo_sr.training.regimes import REGIMES
from nemo_sr.words import ROUNDINGS

SCHEDULES = (
    "CosineAnnealing",
    "InverseSquareRootAnnealing",
    "PolynomialDecayAnnealing",
    "SquareAnnealing",
    "SquareRootAnnealing",
    "WarmupPolicy",
)
"""NeMo's schedules that are functions of the step and of the keys of ``optim.sched``.

Left out: those that need more keys (hold_steps, d_model), T5's, which ignores the learning rate, and WarmupAnnealing,
which gives every parameter group the first one's rate (PolynomialDecayAnnealing is the same line).
"""

_SHARE = r"\s*(\d+\.?\d*|\.\d+)\s*"

Rule = tuple[str, Callable[[Any], bool]]

_AT_LEAST_1: Rule = ("at least 1", lambda value: value >= 1)
_AT_LEAST_0: Rule = ("at least 0", lambda value: 0 <= value < math.inf)
_POSITIVE: Rule = ("above 0", lambda value: 0 < value < math.inf)
_DROPOUT: Rule = ("at least 0 and below 1", lambda value: 0 <= value < 1)
_NOT_EMPTY: Rule = ("not empty", lambda value: value.strip() != "")
_RANKS: Rule = ("ranks, at least one and each at least 0", lambda value: len(value) > 0 and min(value) >= 0)
_ANYTHING: Rule = ("anything", lambda value: True)
_TOO_LARGE = 1 << 31  # for whatever has a unit: NumPy's and Megatron-core's counters are of 32 or 64 bits


def _one_of(*choices: str) -> Rule:
    return (f"one of {', '.join(choices)}", lambda value: value in choices)


def _is_name(text: str) -> bool:
    return re.fullmatch(r"[\w.-]+", text, re.ASCII) is not None


def parse_time(text: str) -> int:
    """Return the seconds of DD:HH:MM:SS; 0 for any other text."""
    numbers = re.fullmatch(r"(\d+):([01]\d|2[0-3]):([0-5]\d):([0-5]\d)", text)
    if numbers is None:
        return 0
    days, hours, minutes, seconds = map(int, numbers.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _are_shares(text: str) -> bool:
    has_form = re.fullmatch(rf"{_SHARE}(,{_SHARE}){{0,2}}", text) is not None
    return has_form and re.search("[1-9]", text) is not None


RULES: dict[str, Rule] = {
    "trainer.accelerator": _one_of("cpu", "gpu"),
    "trainer.devices": _AT_LEAST_1,
    "trainer.num_nodes": _AT_LEAST_1,
    "trainer.max_steps": _AT_LEAST_1,
    "trainer.stop_after_steps": _AT_LEAST_1,
    "trainer.max_skipped_steps": _AT_LEAST_1,
    "trainer.heartbeat_timeout": _AT_LEAST_0,
    "trainer.max_time": ("a time above 0 as DD:HH:MM:SS, like '00:11:30:00'", lambda value: parse_time(value) > 0),
    "trainer.val_check_interval": _AT_LEAST_1,
    "trainer.limit_val_batches": _AT_LEAST_0,
    "trainer.log_every_n_steps": _AT_LEAST_1,
    "trainer.check_replicas_every_n_steps": _AT_LEAST_1,
    "trainer.telemetry_every_n_steps": _AT_LEAST_1,
    "trainer.peak_tflops_per_gpu": _POSITIVE,
    "trainer.gradient_clip_val": _AT_LEAST_0,
    "exp_manager.name": _NOT_EMPTY,
    "exp_manager.explicit_log_dir": _NOT_EMPTY,
    "exp_manager.resume_from_checkpoint": _NOT_EMPTY,
    "exp_manager.wandb_logger_kwargs.project": _NOT_EMPTY,
    "exp_manager.wandb_logger_kwargs.name": _NOT_EMPTY,
    "exp_manager.wandb_logger_kwargs.entity": _NOT_EMPTY,
    "exp_manager.wandb_logger_kwargs.group": _NOT_EMPTY,
    "exp_manager.wandb_logger_kwargs.id": _NOT_EMPTY,
    "exp_manager.checkpoint_callback_params.every_n_train_steps": _AT_LEAST_1,
    "exp_manager.checkpoint_callback_params.save_top_k": (
        "at least 0, or -1 for all",
        lambda value: value >= -1,
    ),
    "exp_manager.checkpoint_callback_params.save_last_n": (
        "at least 1, or -1 for all",
        lambda value: value == -1 or value >= 1,
    ),
    "model.architecture": _one_of(*ARCHITECTURES),
    "model.window_size": _AT_LEAST_1,
    "model.num_layers": _AT_LEAST_1,
    "model.hidden_size": _AT_LEAST_1,
    "model.num_attention_heads": _AT_LEAST_1,
    "model.ffn_hidden_size": _AT_LEAST_1,
    "model.encoder_seq_length": _AT_LEAST_1,
    "model.max_position_embeddings": _AT_LEAST_1,
    "model.hidden_dropout": _DROPOUT,
    "model.attention_dropout": _DROPOUT,
    "model.layernorm_epsilon": _POSITIVE,
    "model.init_method_std": _POSITIVE,
    "model.make_vocab_size_divisible_by": _AT_LEAST_1,
    "model.micro_batch_size": _AT_LEAST_1,
    "model.global_batch_size": _AT_LEAST_1,
    "model.rampup_batch_size": (
        "[start, increment, samples], each at least 1",
        lambda value: len(value) == 3 and all(1 <= number < _TOO_LARGE for number in value),
    ),
    "model.tensor_model_parallel_size": _AT_LEAST_1,
    "model.pipeline_model_parallel_size": _AT_LEAST_1,
    "model.activations_checkpoint_granularity": _one_of("selective", "full"),
    "model.activations_checkpoint_method": _one_of("uniform", "block"),
    "model.activations_checkpoint_num_layers": _AT_LEAST_1,
    "model.nsys_profile.start_step": _AT_LEAST_0,
    "model.nsys_profile.end_step": _AT_LEAST_0,
    "model.nsys_profile.ranks": _RANKS,
    "model.torch_profile.start_step": _AT_LEAST_1,
    "model.torch_profile.end_step": _AT_LEAST_1,
    "model.torch_profile.ranks": _RANKS,
    "model.restore_from_path": _NOT_EMPTY,
    # NumPy's generators, which order the data, take 32 bits.
    "model.seed": ("at least 0 and below 2**32", lambda value: 0 <= value < 1 << 32),
    "model.tokenizer.vocab_file": _NOT_EMPTY,
    "model.tokenizer.merge_file": _NOT_EMPTY,
    "optim.name": _one_of(*REGIMES),
    "optim.lr": _POSITIVE,
    "optim.sr_lr_scale": _POSITIVE,
    "optim.decoupled_lr": _POSITIVE,
    "optim.decoupled_min_lr": _AT_LEAST_0,
    "optim.weight_decay": _AT_LEAST_0,
    "optim.betas": (
        "two numbers, each at least 0 and below 1",
        lambda value: len(value) == 2 and all(0 <= beta < 1 for beta in value),
    ),
    "optim.eps": _AT_LEAST_0,
    "optim.grad_dtype": _one_of("bf16", "fp32"),
    "optim.exp_avg_rounding": _one_of(*ROUNDINGS),
    "optim.exp_avg_sq_rounding": _one_of(*ROUNDINGS),
    "optim.seed": ("at least 0 and below 2**64", lambda value: 0 <= value < 1 << 64),
    "optim.sched.name": _one_of(*SCHEDULES),
    "optim.sched.warmup_steps": _AT_LEAST_0,
    "optim.sched.constant_steps": _AT_LEAST_0,
    "optim.sched.min_lr": _AT_LEAST_0,
    "data.splits_string": (
        "up to three shares, at least 0 each and not all 0, like 980,20,0",
        _are_shares,
    ),
    "data.validation_sets": (
        "names (of letters, digits, '_', '.' and '-', each once) and paths in turn",
        lambda value: len(set(value[0::2])) * 2 == len(value) and all(map(_is_name, value[0::2])),
    ),
    "data.index_mapping_dir": _NOT_EMPTY,
    "data.num_workers": _AT_LEAST_0,
}
"""What a key's value must be beyond its type, in words that follow "must be", and whether a value is."""


def check_values(config: DictConfig) -> None:
    """Check every key by itself; null passes where the schema allows it.

    Raises:
        ConfigError: naming the key, what it may be, what it is and its default.
    """
    for key in schema_keys().values():
        value = OmegaConf.select(config, key.name)
        if value is None:
            continue
        requirement, holds = RULES.get(key.name, _ANYTHING)
        if holds(value):
            if key.unit is None or value < _TOO_LARGE:
                continue
            requirement = "below 2**31"
        shown = list(value) if OmegaConf.is_list(value) else f"'{value}'" if isinstance(value, str) else value
        hint = "" if key.default is None else f" (the default is {key.default})"
        raise ConfigError(f"{key.name} must be {requirement}; it is {shown}. Give {key.name} another value{hint}.")
