# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What report.json says: from what and by what the data were made, and what became of it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import nemo_sr
from nemo_sr.data.sources import Source

REPORT_NAME = "report.json"

_QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


def hash_file(path: Path, algorithm: str = "sha256") -> str:
    """Return the checksum of a file, in hexadecimal digits."""
    digest = hashlib.new(algorithm)
    with path.open("rb") as file:
        while data := file.read(1 << 20):
            digest.update(data)
    return digest.hexdigest()


def read_fingerprint(folder: Path) -> str | None:
    """Return the fingerprint of the vocabulary that a folder's data were made with, None if no report says it."""
    try:
        report = json.loads((folder / REPORT_NAME).read_text(encoding="utf-8"))
        return str(report["tokenizer"]["fingerprint"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def describe_inputs(sources: Sequence[Source]) -> list[dict[str, Any]] | None:
    """Describe files well enough to notice that one has changed; None if one is no file."""
    if any(source.size is None for source in sources):
        return None
    stats = [(source.path, source.path.stat()) for source in sources]
    return [{"name": path.name, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns} for path, stat in stats]


def list_inputs(sources: Sequence[Source], *, hashed: bool) -> list[dict[str, Any]]:
    """Name each input, with size and, if it is a file and that is wanted, SHA-256."""
    return [
        {
            "name": str(source.path),
            "size": source.size,
            "sha256": hash_file(source.path) if hashed and source.size is not None else None,
        }
        for source in sources
    ]


def describe_lengths(lengths: NDArray[np.int32]) -> dict[str, int]:
    """Return quantiles of the tokens per document, values that occur."""
    if lengths.size == 0:
        return {}
    values = np.quantile(lengths, _QUANTILES, method="inverted_cdf")
    return {f"{share:.0%}": int(value) for share, value in zip(_QUANTILES, values, strict=True)}


def list_versions() -> dict[str, str]:
    """Return the versions of what the outputs depend on."""
    packages = ("mwparserfromhell", "tokenizers", "numpy")
    return {"nemo_sr": nemo_sr.__version__, **{package: importlib.metadata.version(package) for package in packages}}
