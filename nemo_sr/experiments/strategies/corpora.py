# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The texts that experiments train on: the sample corpus, made here, and a real dump of Wikipedia if there is one."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

REAL_DATA = "NEMO_SR_REAL_DATA"
DUMP = "enwiki-206-pages.xml.bz2"
TOKENS = 4096
"""Of the tokenizers, each trained on its own corpus."""


def corpora() -> list[str]:
    """Return the corpora there are: "sample", and "wikipedia" where ``NEMO_SR_REAL_DATA`` names its folder."""
    return ["sample", *(["wikipedia"] if os.environ.get(REAL_DATA) else [])]


def prepare(name: str, folder: Path, *, size_mb: float | None = None) -> Path:
    """Make a corpus' tokens, or find them made.

    Args:
        name: One of :func:`corpora`.
        folder: Where corpora are kept.
        size_mb: Stop the sample corpus there; None: take all of it.

    Returns:
        The data prefix: without .bin and .idx.

    Raises:
        RuntimeError: a program failed; with its output.
    """
    label = name if size_mb is None else f"{name}_{size_mb:g}mb"
    target, making = folder / label, folder / f"{label}.{os.getpid()}.new"
    prefix = target / "tokens_text_document"
    if prefix.with_suffix(".idx").is_file():
        return prefix
    making.mkdir(parents=True)
    if name == "sample":
        dump = making / "dump.xml.bz2"
        size = [] if size_mb is None else ["--size-mb", str(size_mb)]
        _run("nemo_sr.data.sample_corpus", "--output", str(dump), *size)
    else:
        dump = Path(os.environ[REAL_DATA]) / DUMP
    options = ["--train-tokenizer", str(TOKENS), "--workers", "1"]
    _run("nemo_sr.data.preprocess", "--input", str(dump), "--output", str(making / "tokens"), *options)
    if target.exists():
        shutil.rmtree(target)
    making.rename(target)
    return prefix


def digest_of(prefix: Path) -> str:
    """Return a digest of a corpus' tokens: 16 hexadecimal digits."""
    return hashlib.sha256(prefix.with_name(f"{prefix.name}.bin").read_bytes()).hexdigest()[:16]


def _run(module: str, *arguments: str) -> None:
    code = f"import sys; from {module} import main; sys.exit(main())"
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{module} must end with status 0; it ended with {done.returncode}:\n{done.stdout}")
