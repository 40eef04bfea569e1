# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What the Python installation says about itself: the documentation of its standard library, object by object."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import json
import os
import pkgutil
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Importing these opens a window or a browser, prints, touches the terminal, or brings tests and installers.
_SKIPPED = _words(
    "antigravity this idlelib test tkinter turtle turtledemo lib2to3 ensurepip venv distutils pydoc_data readline "
    "rlcompleter msilib site sitecustomize usercustomize"
)
_SKIPPED_PARTS = frozenset({"tests", "test", "idle_test"})
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_NOT_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Entry:
    """The documentation of one module, class or language topic.

    Attributes:
        name: Qualified name.
        kind: "module", "class" or "topic".
        doc: Its docstring, "" if it has none.
        members: Its functions or methods: name, signature ("" if unknown), docstring.
        children: Qualified names of a module's classes.
    """

    name: str
    kind: str
    doc: str
    members: list[tuple[str, str, str]] = field(default_factory=list)
    children: list[str] = field(default_factory=list)


def read_library() -> list[Entry]:
    """Collect the entries of the standard library and of the language reference, in a fixed order for a given Python.

    Modules that cannot be imported here, those of other systems for instance, are left out. The imports happen in an
    isolated interpreter, so that they change nothing here, and nothing that is loaded here changes them: torch, say,
    replaces functions of the standard library.

    Raises:
        RuntimeError: that interpreter failed.
    """
    command = [sys.executable, "-I", "-S", __file__]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if result.returncode != 0:
        raise RuntimeError(
            f"reading Python's documentation needs a complete standard library; {sys.executable} failed with "
            f"{result.returncode}: {result.stderr.decode(errors='replace')[-300:]}. Repair or change that Python."
        )
    return [
        Entry(name, kind, doc, [(key, signature, text) for key, signature, text in members], children)
        for name, kind, doc, members, children in json.loads(result.stdout)
    ]


def _collect() -> list[Entry]:
    entries: list[Entry] = []
    seen: set[int] = set()
    for name in sorted(sys.stdlib_module_names - _SKIPPED):
        if not name.startswith("_"):
            for module in _import_tree(name):
                entries.extend(_read_module(module, seen))
    topics = _import("pydoc_data.topics")
    if topics is not None:
        for key, text in sorted(topics.topics.items()):
            entries.append(Entry(f"Python topic {key}", "topic", _tidy(text)))
    return entries


def _import_tree(name: str) -> Iterator[ModuleType]:
    module = _import(name)
    if module is None:
        return
    yield module
    if hasattr(module, "__path__"):
        for child in sorted(info.name for info in pkgutil.iter_modules(module.__path__)):
            if not child.startswith("_") and child not in _SKIPPED_PARTS:
                yield from _import_tree(f"{name}.{child}")


def _import(name: str) -> ModuleType | None:
    quiet = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except (Exception, SystemExit):  # whatever a foreign module raises, it is only one article fewer
            return None


def _read_module(module: ModuleType, seen: set[int]) -> Iterator[Entry]:
    functions: list[tuple[str, str, str]] = []
    classes: list[Entry] = []
    for name, value in sorted(vars(module).items()):
        if name.startswith("_") or getattr(value, "__module__", None) != module.__name__ or id(value) in seen:
            continue
        if inspect.isclass(value):
            seen.add(id(value))
            methods = [_describe(key, member) for key, member in sorted(vars(value).items()) if _is_method(key, member)]
            doc = vars(value).get("__doc__")
            classes.append(Entry(f"{module.__name__}.{name}", "class", _tidy(doc), methods))
        elif inspect.isroutine(value):
            seen.add(id(value))
            functions.append(_describe(name, value))
    children = [entry.name for entry in classes]
    yield Entry(module.__name__, "module", _tidy(module.__doc__), functions, children)
    yield from classes


def _is_method(name: str, member: Any) -> bool:
    return not name.startswith("_") and (
        inspect.isroutine(member) or isinstance(member, (property, classmethod, staticmethod))
    )


def _describe(name: str, member: Any) -> tuple[str, str, str]:
    function = getattr(member, "__func__", member)
    try:
        signature = "" if isinstance(member, property) else str(inspect.signature(function))
    except (ValueError, TypeError):
        signature = ""
    # Sets and addresses in default values change from run to run, paths from machine to machine.
    if re.search(r"\{| at 0x|object>", signature) or os.sep in signature:
        signature = ""
    return name, signature, _tidy(getattr(function, "__doc__", None))


def _tidy(doc: object) -> str:
    return _NOT_XML.sub(" ", _ADDRESS.sub("", inspect.cleandoc(doc))) if isinstance(doc, str) else ""


if __name__ == "__main__":
    output = os.dup(1)  # whatever an import prints, in C too, is not in the result
    os.dup2(2, 1)
    with open(output, "w", encoding="ascii") as file:
        json.dump([[entry.name, entry.kind, entry.doc, entry.members, entry.children] for entry in _collect()], file)
