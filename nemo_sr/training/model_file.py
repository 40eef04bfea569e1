# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint says of its model and tokenizer. Imports neither torch nor NeMo.

A run's checkpoint says it in ``run_state.json``, one of weights alone in ``model.json``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from nemo_sr.data.vocabulary import Vocabulary
from nemo_sr.models.architectures import ARCHITECTURES
from nemo_sr.models.description import ModelDescription
from nemo_sr.training.config import ConfigError
from nemo_sr.training.manifest import STATE_FILE

MODEL_FILE = "model.json"


def holds_weights_alone(checkpoint: Path) -> bool:
    """Tell a checkpoint without optimizer and run, as an import from Hugging Face makes it."""
    return (checkpoint / MODEL_FILE).is_file()


def read_description(checkpoint: Path) -> tuple[ModelDescription, dict[str, Path]]:
    """Return what a checkpoint says of its model, and where the tokenizer's files are, by vocab_file and merge_file.

    Raises:
        ValueError: it says nothing, or nothing that can be read.
    """
    file = checkpoint / (MODEL_FILE if holds_weights_alone(checkpoint) else STATE_FILE)
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
        description = ModelDescription(**raw["model"])
        kinds = {field.name: field.type for field in fields(ModelDescription)}
        sizes = [getattr(description, name) for name, kind in kinds.items() if kind == "int"]
        usable = description.architecture in ARCHITECTURES and all(type(size) is int and size > 0 for size in sizes)
        tokenizer = {str(name): checkpoint / path for name, path in raw["tokenizer"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        usable = False
    if not usable:
        raise ValueError(
            f"a checkpoint must say which model it holds, in {MODEL_FILE} or {STATE_FILE}; {checkpoint} does not. Give "
            "one of scripts/pretrain_gpt.py or of scripts/convert_hf.py import."
        )
    return description, tokenizer


def describe_model(description: ModelDescription, tokenizer: Mapping[str, str]) -> dict[str, Any]:
    """Return what :func:`read_description` reads.

    Args:
        description: The model.
        tokenizer: Paths of the tokenizer's files, absolute or from the checkpoint's folder.
    """
    return {"model": asdict(description), "tokenizer": dict(tokenizer)}


def read_vocabulary(description: ModelDescription, files: Mapping[str, Path]) -> Vocabulary:
    """Return the tokenizer's vocabulary and merges.

    Args:
        description: The model.
        files: What :func:`read_description` returned, or other files under the same keys.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged, or the tokenizer is another model's.
    """
    vocabulary = Vocabulary.read(files["vocab_file"], files["merge_file"])
    if len(vocabulary) != description.vocab_size:
        raise ValueError(
            f"the tokenizer must be the model's, of {description.vocab_size} tokens; {files['vocab_file']} has "
            f"{len(vocabulary)}. Give --vocab and --merges."
        )
    return vocabulary


def check_same_model(checkpoint: Path, model: Any) -> None:
    """Check that a checkpoint holds the configured model; the number of tokens is compared when it is loaded.

    What changes no tensor's shape, heads and windows for example, would otherwise go unnoticed.

    Args:
        checkpoint: The checkpoint.
        model: The ``model`` part of a configuration.

    Raises:
        ConfigError: naming the keys that differ.
    """
    try:
        saved, _ = read_description(checkpoint)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    compare_models(checkpoint, saved, model)


def compare_models(checkpoint: Path, saved: ModelDescription, model: Any, vocab_size: int | None = None) -> None:
    """Check that a description is that of the configured model.

    Args:
        checkpoint: What is described.
        saved: The description.
        model: The ``model`` part of a configuration.
        vocab_size: Tokens of the run's tokenizer; None: not compared.

    Raises:
        ConfigError: naming the keys that differ.
    """
    present = asdict(ModelDescription.from_config(model, vocab_size or saved.vocab_size))
    different = [key for key, value in asdict(saved).items() if present[key] != value]
    if different:
        changes = ", ".join(f"model.{key} is {getattr(saved, key)} there and {present[key]} here" for key in different)
        raise ConfigError(
            f"A run must have the model of the checkpoint that it goes on from; of {checkpoint} {changes}. Set them to "
            "what they are there, or give another checkpoint."
        )
