# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Weights that a run begins with: which folder ``model.restore_from_path`` means, and Hugging Face's into a module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nemo_sr.training.config import ConfigError
from nemo_sr.training.manifest import STATE_FILE
from nemo_sr.training.model_file import MODEL_FILE, check_same_model, compare_models, holds_weights_alone
from nemo_sr.training.run_folder import find_checkpoints

KEY = "model.restore_from_path"


def find_weights(path: Path, model: Any) -> Path:
    """Return the folder that `path` stands for: a checkpoint, the newest of a run, or a Hugging Face folder.

    Args:
        path: What ``model.restore_from_path`` is.
        model: The ``model`` part of the configuration.

    Raises:
        ConfigError: it is none of these, or holds another model.
    """
    if is_hugging_face(path):
        _read_config(path, model, None)
        return path
    complete = [one.path for one in find_checkpoints(path / "checkpoints") if one.state == "complete"]
    folder = complete[-1] if complete else path
    if not ((folder / STATE_FILE).is_file() or holds_weights_alone(folder)):
        raise ConfigError(
            f"{KEY} must be a checkpoint with {STATE_FILE} or {MODEL_FILE}, a run with a complete one in checkpoints/, "
            f"or a Hugging Face folder with config.json; {path} is none of them. Correct it. "
            "exp_manager.resume_from_checkpoint takes Megatron-core's."
        )
    check_same_model(folder, model)
    return folder


def is_hugging_face(folder: Path) -> bool:
    """Tell a folder that transformers wrote."""
    return (folder / "config.json").is_file() and not holds_weights_alone(folder)


def _read_config(folder: Path, model: Any, vocab_size: int | None) -> Any:
    from nemo_sr.models.hf_config import read_config

    try:
        description = read_config(folder)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{KEY}: {error}") from None
    compare_models(folder, description, model, vocab_size)
    return description


def load_hugging_face(pl_module: Any, folder: Path) -> None:
    """Copy the weights of a Hugging Face folder into a GPTModule, every rank its part; rows that pad become zeros.

    Args:
        pl_module: The module, its optimizer made.
        folder: The folder: config.json and safetensors.

    Raises:
        ConfigError: the folder does not fit, or is damaged.
    """
    import torch

    from nemo_sr.megatron.naming import place_parameters
    from nemo_sr.models.hf_folder import WeightFiles
    from nemo_sr.models.hf_weights import hugging_face_shapes, megatron_tensors

    description = _read_config(folder, pl_module.config.model, pl_module.vocab_size)
    places = {place.name: (param, place) for param, place in place_parameters(list(pl_module.chunks)).items()}
    try:
        files = WeightFiles(folder, hugging_face_shapes(description))
        with torch.no_grad():
            for name, tensor in megatron_tensors(description, files.read):
                if name not in places:
                    continue  # another pipeline stage's
                param, place = places[name]
                (piece,) = place.pieces
                part = tensor[
                    tuple(
                        slice(begin, begin + size)
                        for begin, size in zip(piece.block_offset, piece.block_shape, strict=True)
                    )
                ]
                param[: len(part)].copy_(part)
                param[len(part) :].zero_()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{KEY}: {error}") from None
