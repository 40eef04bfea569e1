# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The weights of a Hugging Face folder: safetensors, in one file or several."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_PREFIX = "transformer."
_BUFFER = re.compile(r"\.attn\.(attention\.)?(bias|masked_bias)$")
_DTYPES = {"F64", "F32", "F16", "BF16"}
MAX_FILE_BYTES = 5_000_000_000
"""A file of weights is begun anew before it would hold more."""


class WeightFiles:
    """The tensors of a folder's safetensors files, read one at a time.

    Args:
        folder: The folder.
        shapes: Name and shape of every tensor that must be there.

    Raises:
        FileNotFoundError: files are missing.
        ValueError: a file is no safetensors file, or the tensors are others.
    """

    def __init__(self, folder: Path, shapes: dict[str, tuple[int, ...]]) -> None:
        self._files: dict[str, tuple[Path, str]] = {}
        for file in _find_files(folder):
            with _opened(file) as opened:
                for key in opened.keys():  # noqa: SIM118 - no dict
                    self._take(file, key, opened.get_slice(key), shapes)
        if missing := [name for name in shapes if name not in self._files]:
            raise ValueError(
                f"{folder} must hold every tensor that its config.json asks for; {len(missing)} are missing, "
                f"{missing[0]} first. Give the folder of a whole model."
            )

    def _take(self, file: Path, key: str, tensor: Any, shapes: dict[str, tuple[int, ...]]) -> None:
        # The base model's files have the names without the prefix.
        name = key if key.startswith(_PREFIX) or key in shapes else _PREFIX + key
        if _BUFFER.search(name) and name not in shapes:
            return
        if key == "lm_head.weight" and key not in shapes:
            return  # tied: the embedding's once more
        if name not in shapes:
            raise ValueError(
                f"{file} has a tensor that the model of its config.json does not have: {key}. Give the folder of a "
                "GPT-2 or GPT-Neo language model."
            )
        if name in self._files:
            raise ValueError(f"every tensor must be there once; {key} is in {self._files[name][0]} and in {file}.")
        shape = tuple(tensor.get_shape())
        if shape != shapes[name]:
            raise ValueError(
                f"{key} must have the shape {shapes[name]} by config.json; in {file} it has {shape}. The two do not "
                "belong together."
            )
        if tensor.get_dtype() not in _DTYPES:
            raise ValueError(f"weights must be of one of {', '.join(sorted(_DTYPES))}; {key} in {file} is not.")
        self._files[name] = file, key

    def read(self, name: str) -> torch.Tensor:
        """Return a tensor."""
        file, key = self._files[name]
        with _opened(file) as opened:
            tensor: torch.Tensor = opened.get_tensor(key)
        return tensor


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        with safe_open(file, framework="pt") as opened:
            yield opened
    except SafetensorError as error:
        raise ValueError(f"{file} must be a whole safetensors file: {error}. Download it again.") from None


def _find_files(folder: Path) -> list[Path]:
    index = folder / _INDEX
    if not index.is_file():
        if (folder / _WEIGHTS).is_file():
            return [folder / _WEIGHTS]
        others = sorted(path.name for path in folder.glob("*.bin"))
        hint = (
            f" It has {others[0]}, which may run code when it is read: write it anew with transformers' "
            "save_pretrained, where you trust it."
            if others
            else " Give the folder of a model."
        )
        raise FileNotFoundError(f"the weights must be safetensors; {folder} has no {_WEIGHTS} and no {_INDEX}.{hint}")
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        inside = all(isinstance(name, str) and Path(name).name == name for name in names)
    except (ValueError, KeyError, TypeError, AttributeError):
        inside = False
    if not inside:
        raise ValueError(f"{index} must list files of its folder under weight_map; it does not. Download it again.")
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise FileNotFoundError(f"{index} lists {missing[0]}; it is not there. Download the rest of the model.")
    return [folder / name for name in names]


def write_weights(folder: Path, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Write tensors as safetensors files that transformers loads.

    Args:
        folder: An empty folder.
        tensors: Names and tensors, contiguous; only those of one file are held at a time.
    """
    written: list[dict[str, int]] = []
    pending: dict[str, torch.Tensor] = {}

    def write() -> None:
        written.append({name: _num_bytes(tensor) for name, tensor in pending.items()})
        save_file(pending, folder / f"part-{len(written)}", metadata={"format": "pt"})
        pending.clear()

    for name, tensor in tensors:
        if pending and sum(map(_num_bytes, pending.values())) + _num_bytes(tensor) > MAX_FILE_BYTES:
            write()
        pending[name] = tensor
    write()
    if len(written) == 1:
        (folder / "part-1").rename(folder / _WEIGHTS)
        return
    places = {}
    for number, names in enumerate(written, start=1):
        file = f"model-{number:05d}-of-{len(written):05d}.safetensors"
        (folder / f"part-{number}").rename(folder / file)
        places.update(dict.fromkeys(names, file))
    total = sum(size for names in written for size in names.values())
    write_json(folder / _INDEX, {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))})


def _num_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def write_json(file: Path, content: dict[str, Any]) -> None:
    """Write `content` as JSON."""
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
