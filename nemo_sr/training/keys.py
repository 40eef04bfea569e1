# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What the schema says of each key: type, unit, default, meaning, and whose name it is."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import typing
from collections.abc import Iterator
from typing import Any

import yaml

from nemo_sr.training import profile_schema, schema

ORIGINS = ("nemo_sr", "Megatron-core")
"""Whose a key is if its docstring ends with one of these in parentheses; it is NeMo 1.x's otherwise."""

_TYPES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    list[float]: "numbers in []",
    list[int]: "whole numbers in []",
    list[str]: "texts in []",
}


@dataclasses.dataclass(frozen=True)
class Key:
    """One key of the configuration."""

    name: str
    """With its groups: "optim.sched.min_lr"."""

    kind: str
    """What its value is, in words that follow "must be"."""

    unit: str | None
    """What a number counts or measures; None where it has no unit."""

    default: str | None
    """As YAML; None where a value must be given."""

    text: str
    """The docstring on one line, without the origin."""

    origin: str
    """"NeMo 1.x" or one of :data:`ORIGINS`."""

    is_group: bool
    """Whether it holds other keys and no value of its own."""

    @property
    def summary(self) -> str:
        """The first clause of the text."""
        return self.text.partition(". ")[0].partition("; ")[0].removesuffix(".")


@functools.cache
def schema_keys() -> dict[str, Key]:
    """Return every key of the schema under its name, groups before their members."""
    return {key.name: key for key in _walk(schema.PretrainConfig, "")}


def _walk(group: type[Any], prefix: str) -> Iterator[Key]:
    written = _read_source()[group.__name__]
    types = typing.get_type_hints(group)
    for field in dataclasses.fields(group):
        annotation, text = written[field.name]
        name, kind = f"{prefix}{field.name}", types[field.name]
        is_group = dataclasses.is_dataclass(kind)
        if is_group and not text:
            text = inspect.cleandoc(kind.__doc__ or "")
        text, origin = _split_origin(text)
        given = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        default = None if is_group or given == "???" else in_yaml(given)
        yield Key(name, _in_words(kind), _unit(annotation), default, text, origin, is_group)
        if is_group:
            yield from _walk(typing.cast("type[Any]", kind), f"{name}.")


@functools.cache
def _read_source() -> dict[str, dict[str, tuple[str, str]]]:
    """Return annotation and docstring, on one line, of every field of every class, as they are written."""
    found: dict[str, dict[str, tuple[str, str]]] = {}
    modules = (schema, profile_schema)
    for node in (node for module in modules for node in ast.parse(inspect.getsource(module)).body):
        if isinstance(node, ast.ClassDef):
            fields = found.setdefault(node.name, {})
            for field, follower in zip(node.body, [*node.body[1:], ast.Pass()], strict=True):
                if isinstance(field, ast.AnnAssign):
                    text = ""
                    if isinstance(follower, ast.Expr) and isinstance(follower.value, ast.Constant):
                        text = " ".join(str(follower.value.value).split())
                    fields[ast.unparse(field.target)] = (ast.unparse(field.annotation), text)
    return found


def _split_origin(text: str) -> tuple[str, str]:
    for origin in ORIGINS:
        if text.endswith(f" ({origin})"):
            return text.removesuffix(f" ({origin})"), origin
    return text, "NeMo 1.x"


def _unit(annotation: str) -> str | None:
    name = annotation.removeprefix("Optional[").removesuffix("]")
    return name.lower() if getattr(schema, name, None) in (int, float) else None


def _in_words(kind: Any) -> str:
    if kind is Any:
        return "a path, a list of paths, or weights above 0 and paths in turn"
    if dataclasses.is_dataclass(kind):
        return "a group of keys"
    if kind in _TYPES:
        return _TYPES[kind]
    inner = next(option for option in typing.get_args(kind) if option is not type(None))
    return f"{_TYPES[inner]} or null"


def in_yaml(value: Any) -> str:
    """Return a value as YAML, on one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=float("inf"))
    return text.removesuffix("\n").removesuffix("\n...")
