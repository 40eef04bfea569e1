# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What a configuration must satisfy before anything starts: sizes that divide, files that exist."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from packaging.version import Version

from nemo_sr.data.indexed import check_prefix
from nemo_sr.data.report import REPORT_NAME, read_fingerprint
from nemo_sr.models.architectures import ARCHITECTURES, check_transformer_engine
from nemo_sr.training.config import ConfigError
from nemo_sr.training.loggers import check_loggers
from nemo_sr.training.regimes import find_regime
from nemo_sr.training.tokenizer import GPT2BPETokenizer
from nemo_sr.training.validation_sets import validation_sets
from nemo_sr.training.values import check_values

DEVICES = "GPUs that torch sees"


def checks_of(config: DictConfig) -> list[tuple[str, Callable[[], object]]]:
    """Return what is checked before a run starts, and how; each check raises a ConfigError."""
    experiment, data = config.exp_manager, config.data
    return [
        ("values", lambda: check_values(config)),
        ("strategy", lambda: find_regime(config.optim)),
        ("schedule", lambda: check_schedule(config.optim, config.trainer.max_steps)),
        ("parallel layout", lambda: check_layout(config)),
        (DEVICES, lambda: _check_devices(config.trainer)),
        ("Transformer Engine", lambda: _check_transformer_engine(config)),
        (
            "folder of the run",
            lambda: _check_folder("exp_manager.explicit_log_dir", experiment.explicit_log_dir),
        ),
        ("folder of sample orders", lambda: _check_folder("data.index_mapping_dir", data.index_mapping_dir)),
        ("loggers", lambda: check_loggers(experiment)),
        ("profiles", lambda: check_profiles(config)),
        ("data and tokenizer", lambda: check_data(data, config.model)),
        ("packages", lambda: check_packages(config)),
    ]


def check_config(config: DictConfig) -> None:
    """Check everything about `config` that does not need a GPU, a process group or NeMo.

    Raises:
        ConfigError: naming the key, the values and what to do.
    """
    for _, check in checks_of(config):
        check()


def check_packages(config: DictConfig) -> None:
    """Check that what a run needs only when it saves is installed, and that Megatron-core is of a line that fits.

    Raises:
        ConfigError: naming the package.
    """
    with contextlib.suppress(PackageNotFoundError):  # a source tree on the path: transformer_config looks again
        installed = version("megatron-core")
        try:
            ARCHITECTURES[config.model.architecture].check_megatron(installed)
        except RuntimeError as error:
            raise ConfigError(str(error)) from None
        if Version(installed).release >= (0, 17):
            raise ConfigError(
                f"Training by nemo_sr's own program needs megatron-core 0.16 or older, whose writers of checkpoints it "
                f"watches; {installed} is installed. Run: pip install 'megatron-core<0.17'"
            )
    try:
        import psutil  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "psutil":
            raise
        raise ConfigError(
            "Saving a checkpoint needs the package psutil, which Megatron-core uses and does not require; it is not "
            "installed. Run: pip install psutil"
        ) from None


def check_layout(config: DictConfig) -> None:
    """Check that ranks, batch and model divide as the parallel layout needs.

    Raises:
        ConfigError: naming the numbers that do not divide.
    """
    model, trainer = config.model, config.trainer
    if model.window_size is not None and ARCHITECTURES[model.architecture].window_size is None:
        raise ConfigError(
            f"model.window_size belongs to model.architecture=gpt_neo; it is {model.window_size} and the architecture "
            f"{model.architecture}. Set model.window_size=null, or choose model.architecture=gpt_neo."
        )
    tp, pp = model.tensor_model_parallel_size, model.pipeline_model_parallel_size
    num_ranks = trainer.devices * trainer.num_nodes
    if num_ranks % (tp * pp):
        raise ConfigError(
            f"tensor_model_parallel_size * pipeline_model_parallel_size must divide the number of ranks; they are "
            f"{tp} * {pp} = {tp * pp} and trainer.devices * trainer.num_nodes = {num_ranks}. "
            f"Change one of model.tensor_model_parallel_size, model.pipeline_model_parallel_size, trainer.devices."
        )
    dp = num_ranks // (tp * pp)
    if model.global_batch_size % (model.micro_batch_size * dp):
        raise ConfigError(
            f"model.global_batch_size must be a multiple of model.micro_batch_size * data-parallel ranks; it is "
            f"{model.global_batch_size}, and they are {model.micro_batch_size} * {dp} = {model.micro_batch_size * dp}. "
            f"Change model.global_batch_size or model.micro_batch_size."
        )
    _check_rampup(model, dp)
    _check_recomputation(model, pp)
    if model.num_attention_heads % tp:
        raise ConfigError(
            f"model.num_attention_heads must be a multiple of model.tensor_model_parallel_size; they are "
            f"{model.num_attention_heads} and {tp}. Change one of them."
        )
    if model.sequence_parallel and tp == 1:
        raise ConfigError(
            "model.sequence_parallel must be false unless tensor-parallel ranks share each sequence; it is true and "
            "model.tensor_model_parallel_size=1. Change one of them."
        )
    if model.sequence_parallel and model.encoder_seq_length % tp:
        raise ConfigError(
            f"model.encoder_seq_length must be a multiple of model.tensor_model_parallel_size with "
            f"model.sequence_parallel=true; they are {model.encoder_seq_length} and {tp}. Change one of them."
        )
    if model.sequence_parallel and find_regime(config.optim).autocast:
        raise ConfigError(
            f"model.sequence_parallel must be false with optim.name={config.optim.name}: Megatron-core's layers reduce "
            "BF16 gradients into FP32 buffers under autocast, which fails; it is true. Set "
            "model.sequence_parallel=false, or choose another strategy."
        )
    ffn = model.ffn_hidden_size
    if ffn is not None and ffn % tp:
        raise ConfigError(
            f"model.ffn_hidden_size must be a multiple of model.tensor_model_parallel_size; they are "
            f"{ffn} and {tp}. Change one of them."
        )
    if model.num_layers % pp:
        raise ConfigError(
            f"model.num_layers must be a multiple of model.pipeline_model_parallel_size; they are "
            f"{model.num_layers} and {pp}. Change one of them."
        )
    if model.hidden_size % model.num_attention_heads:
        raise ConfigError(
            f"model.hidden_size must be a multiple of model.num_attention_heads; they are "
            f"{model.hidden_size} and {model.num_attention_heads}. Change one of them."
        )
    if model.max_position_embeddings < model.encoder_seq_length:
        raise ConfigError(
            f"model.max_position_embeddings must be at least model.encoder_seq_length; they are "
            f"{model.max_position_embeddings} and {model.encoder_seq_length}. Change one of them."
        )


def _check_rampup(model: DictConfig, num_data_parallel: int) -> None:
    if model.rampup_batch_size is None:
        return
    start, increment, _ = given = list(model.rampup_batch_size)
    unit = model.micro_batch_size * num_data_parallel
    full = model.global_batch_size
    if start % unit or increment % unit or start >= full or (full - start) % increment:
        raise ConfigError(
            f"model.rampup_batch_size must begin below model.global_batch_size={full} and reach it in whole "
            f"increments, start and increment being multiples of model.micro_batch_size * data-parallel ranks = "
            f"{model.micro_batch_size} * {num_data_parallel} = {unit}; it is {given}. Change it, or set it to null."
        )


def _check_recomputation(model: DictConfig, pipeline_parallel: int) -> None:
    granularity, method = model.activations_checkpoint_granularity, model.activations_checkpoint_method
    num_layers = model.activations_checkpoint_num_layers
    for key, value in (("method", method), ("num_layers", num_layers)):
        if value is not None and granularity != "full":
            raise ConfigError(
                f"model.activations_checkpoint_{key} must be null unless model.activations_checkpoint_granularity is "
                f"full; it is {value} and the granularity {'null' if granularity is None else granularity}. Change one "
                "of them."
            )
    stage = model.num_layers // pipeline_parallel
    if num_layers is not None and num_layers > stage:
        raise ConfigError(
            f"model.activations_checkpoint_num_layers must be at most the layers of a pipeline stage; they are "
            f"{num_layers} and {stage}. Change it."
        )


def check_data(data: DictConfig, model: DictConfig) -> None:
    """Check that the data and the tokenizer's files are there, complete, and belong together.

    What made the data is known if scripts/preprocess_wikipedia.py did: its report says of what vocabulary.

    Raises:
        ConfigError: naming the first file that is not as it should be.
    """
    keys = dict.fromkeys(prefixes(data.data_prefix)[0], "data.data_prefix")
    keys.update(dict.fromkeys(validation_sets(data).values(), "data.validation_sets"))
    for path, key in keys.items():
        _check_prefix(key, path)
    files = tokenizer_files(data, model)
    tokenizer = GPT2BPETokenizer(**files)
    for prefix, key in keys.items():
        made_with = read_fingerprint(Path(prefix).parent)
        if made_with is not None and made_with != tokenizer.vocabulary.fingerprint:
            raise ConfigError(
                f"{key}: {prefix} must be tokenized with the vocabulary of the run, {files['vocab_file']}; "
                f"{Path(prefix).parent / REPORT_NAME} says that it was another. Give model.tokenizer.vocab_file and "
                "merge_file of the data, or make the data anew."
            )


def prefixes(data_prefix: Any) -> tuple[list[str], list[float] | None]:
    """Return the paths and the weights that ``data.data_prefix`` holds: one path, paths, or weights and paths in turn.

    Raises:
        ConfigError: it is none of these.
    """
    if isinstance(data_prefix, str):
        return [data_prefix], None
    items = list(data_prefix) if isinstance(data_prefix, Sequence) else []
    if items and all(isinstance(item, str) and not _is_number(item) for item in items):
        return items, None
    weights, paths = items[0::2], items[1::2]
    weighs = all(_is_number(weight) and 0 < float(weight) < math.inf for weight in weights)
    if not items or len(items) % 2 or not weighs:
        raise ConfigError(
            "data.data_prefix must be a path, a list of paths, or weights above 0 and paths in turn; it is "
            f"{data_prefix}. "
            "Write for example data.data_prefix=[0.3,/data/a,0.7,/data/b]."
        )
    return [str(path) for path in paths], [float(weight) for weight in weights]


def _check_prefix(key: str, path: str) -> None:
    try:
        check_prefix(path)
    except (FileNotFoundError, ValueError) as error:
        raise ConfigError(f"{key}: {error}") from None


def tokenizer_files(data: DictConfig, model: DictConfig) -> dict[str, Path]:
    """Return the tokenizer's files under their keys; the defaults lie beside the first data set."""
    folder = Path(prefixes(data.data_prefix)[0][0]).parent
    return {
        "vocab_file": Path(model.tokenizer.vocab_file or folder / "gpt2-vocab.json"),
        "merge_file": Path(model.tokenizer.merge_file or folder / "gpt2-merges.txt"),
    }


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def check_schedule(optim: DictConfig, max_steps: int) -> None:
    """Check that learning rates and phases of the schedule fit each other and the run.

    Raises:
        ConfigError: naming the keys that do not.
    """
    sched = optim.sched
    decoupled = "lr" if optim.decoupled_lr is None else "decoupled_lr"
    for low_key, low, key in (
        ("sched.min_lr", sched.min_lr, "lr"),
        ("decoupled_min_lr", optim.decoupled_min_lr, decoupled),
    ):
        if low is not None and not low < optim[key]:
            raise ConfigError(
                f"optim.{low_key} must be below optim.{key}; they are {low} and {optim[key]}. Change one of them."
            )
    if sched.constant_steps and sched.name != "CosineAnnealing":
        raise ConfigError(
            f"optim.sched.constant_steps belongs to optim.sched.name=CosineAnnealing; it is {sched.constant_steps} and "
            f"the schedule {sched.name}. Set optim.sched.constant_steps=0, or choose CosineAnnealing."
        )
    if sched.warmup_steps + sched.constant_steps >= max_steps:
        raise ConfigError(
            f"optim.sched.warmup_steps + optim.sched.constant_steps must be below trainer.max_steps; they are "
            f"{sched.warmup_steps} + {sched.constant_steps} and {max_steps}. Change one of them."
        )


def check_profiles(config: DictConfig) -> None:
    """Check the windows of ``model.torch_profile`` and ``model.nsys_profile``.

    Raises:
        ConfigError: a window ends before it begins, a rank does not exist, or there is no GPU for Nsight Systems.
    """
    num_ranks = config.trainer.devices * config.trainer.num_nodes
    for key in ("torch_profile", "nsys_profile"):
        profile = config.model[key]
        if not profile.enabled:
            continue
        if profile.end_step < profile.start_step:
            raise ConfigError(
                f"model.{key}.end_step must be at least model.{key}.start_step; they are {profile.end_step} and "
                f"{profile.start_step}. Change one of them."
            )
        if any(rank >= num_ranks for rank in profile.ranks):
            raise ConfigError(
                f"model.{key}.ranks must be ranks of the run, 0 to {num_ranks - 1}; they are {list(profile.ranks)}. "
                "Change them."
            )
    if config.model.nsys_profile.enabled and config.trainer.accelerator != "gpu":
        raise ConfigError(
            "model.nsys_profile.enabled must be false without trainer.accelerator=gpu; it is true and the accelerator "
            f"{config.trainer.accelerator}. Set model.torch_profile.enabled=true in its place."
        )


def _check_devices(trainer: DictConfig) -> None:
    if trainer.accelerator != "gpu":
        return
    import torch  # takes seconds; a run on the CPU can do without it here

    visible = torch.cuda.device_count()  # does not initialise CUDA
    if visible < trainer.devices:
        raise ConfigError(
            f"trainer.accelerator=gpu needs trainer.devices={trainer.devices} visible GPUs on this node; torch "
            f"{torch.__version__} sees {visible}. Set trainer.devices to at most that, check CUDA_VISIBLE_DEVICES and "
            "that torch is built for CUDA, or set trainer.accelerator=cpu."
        )


def _check_transformer_engine(config: DictConfig) -> None:
    if not config.model.transformer_engine:
        return
    is_installed = importlib.util.find_spec("transformer_engine") is not None
    try:
        check_transformer_engine(on_cpu=config.trainer.accelerator == "cpu", is_installed=is_installed)
    except RuntimeError as error:
        raise ConfigError(str(error)) from None


def _check_folder(key: str, folder: str | None) -> None:
    """Check that a folder can be made and written into; it may be there already."""
    if folder is None:
        return
    there = Path(folder).absolute()
    while not there.exists():
        there = there.parent
    if not there.is_dir():
        raise ConfigError(f"{key} must be a folder; it is {folder}, and {there} is a file. Give another.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(
            f"{key} must be a folder that can be written; it is {folder}, and {there} cannot. Give another, or change "
            "its permissions."
        )
