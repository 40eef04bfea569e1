# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The version of the code that a part runs: a digest of the files of nemo_sr that its module imports."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import nemo_sr

PACKAGE = "nemo_sr"
FRAME = "nemo_sr.experiments.frame"
"""Changes here change how results are kept and shown, not what they are."""

ROOT = Path(nemo_sr.__file__).parent.parent


@cache
def code_version(module: str, sources: tuple[str, ...]) -> str:
    """Hash the sources of a module, of what it imports of nemo_sr, and of further files.

    Args:
        module: Its full name.
        sources: Files and folders relative to the folder that holds the package.

    Returns:
        16 hexadecimal digits.

    Raises:
        ValueError: there is no such file or folder.
    """
    files = _imported(module)
    for source in sources:
        path = ROOT / source
        if not path.exists():
            raise ValueError(f"a source must be a file or folder beside the package; got {source!r}. Correct its name.")
        found = _text_files(path) if path.is_dir() else [path]
        files.update((file.relative_to(ROOT).as_posix(), file) for file in found)
    digest = hashlib.sha256()
    for name, file in sorted(files.items()):
        digest.update(name.encode() + b"\0" + _content(file) + b"\0")
    return digest.hexdigest()[:16]


@cache
def _content(file: Path) -> bytes:
    """Read a file once in a process: what was there when the process began is what it runs."""
    return file.read_bytes()


def _text_files(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.suffix in (".py", ".yaml", ".c", ".h", ".json")]


def _imported(module: str) -> dict[str, Path]:
    waiting, files = [module], dict[str, Path]()
    while waiting:
        name = waiting.pop()
        file = _file_of(name)
        if name in files or file is None:
            continue
        files[name] = file
        names = _names(ast.parse(_content(file)))
        waiting += [found for found in names if not found.startswith(FRAME) and found != "nemo_sr.experiments"]
    return files


def _names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names: Sequence[str] = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            # "from package import module" too.
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        yield from (name for name in names if name == PACKAGE or name.startswith(f"{PACKAGE}."))


def _file_of(module: str) -> Path | None:
    """Find a module's file without importing it or its parents; None for what is no module (a class, say)."""
    if module.partition(".")[0] != PACKAGE:
        spec = find_spec(module)
        return Path(spec.origin) if spec is not None and spec.origin is not None else None
    path = ROOT.joinpath(*module.split("."))
    found = [file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()]
    return found[0] if found else None
