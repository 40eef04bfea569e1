# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What Hydra and OmegaConf refuse, in words that name the key, what it takes, what it was given and what to do."""

from __future__ import annotations

import difflib
import re
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nemo_sr.training.keys import Key, schema_keys
from nemo_sr.training.schema import PretrainConfig


def reword(error: Exception, overrides: Sequence[str], name: str, conf: Path) -> str:
    """Return the message that a person can act on.

    Args:
        error: What was raised while a configuration was composed.
        overrides: The words of the command line.
        name: The primary configuration's name.
        conf: The folder of the configurations.
    """
    # Hydra wraps OmegaConf's error, which alone says what is wrong.
    messages = [str(error)]
    cause = error.__cause__ or error.__context__
    while cause is not None:
        messages.append(str(cause))
        cause = cause.__cause__ or cause.__context__
    text = "\n".join(messages)
    for override in overrides:
        key = re.split(r"[=@]", override.lstrip("+~"), maxsplit=1)[0]
        leaf = key.rpartition(".")[2]
        if re.search(rf"(Key|Could not (find|override|append|delete)).*'?{re.escape(leaf)}'?", text) and (
            key not in schema_keys() and key not in _groups(conf)
        ):
            return unknown_key(key, conf)
    where = match[1] if (match := re.search(r"In '([^']+)'", text)) else None
    if (match := re.search(r"full_key: ([\w.]+)", text)) is not None:
        known = schema_keys().get(match[1])
        if known is None:
            return unknown_key(match[1], conf, where)
        if (given := _given(text)) is not None:
            return wrong_type(known, given, where)
    if match := re.search(r"Merge error: \w+ is not a subclass of (\w+)\. value: (.*)", text):
        group = next((key for key in schema_keys().values() if key.is_group and _class_of(key) == match[1]), None)
        if group is not None:
            return wrong_type(group, f"'{match[2]}'", where)
    if "Cannot find primary config" in text:
        files = sorted(path.stem for path in conf.glob("*.yaml"))
        return f"--config-name must name a file in {conf}; '{name}' is not there. Use one of: {', '.join(files)}."
    if match := re.search(r"Could not find '?([\w/]+)/([\w.-]+)'?", text):
        return unknown_choice(match[1], match[2], conf)
    if "Ambiguous value for argument" in text:
        key, _, value = text.partition("'")[2].partition("'")[0].partition("=")
        return (
            f"A value that holds commas must be in quotes that the shell leaves in place; '{key}={value}' has none. "
            f"Write '{key}=\"{value}\"' for a text, '{key}=[{value}]' for a list."
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (
        f"The command line does not make a configuration: {lines[-1] if len(lines) == 1 else ' | '.join(lines[:3])}. "
        "Overrides are key=value, without spaces around '='; quote values that hold commas or brackets."
    )


def _class_of(group: Key) -> str:
    kind: Any = PretrainConfig
    for part in group.name.split("."):
        kind = typing.get_type_hints(kind)[part]
    return str(kind.__name__)


def unknown_key(key: str, conf: Path, where: str | None = None) -> str:
    """Return what to say of a key that the schema does not have, in the configuration `where` or anywhere."""
    near = _near(key, list(schema_keys()) if "." in key else [*schema_keys(), *_groups(conf)])
    hint = f"Near it: {', '.join(near)}. " if near else ""
    place = f" (in {where}.yaml)" if where else ""
    return (
        f"A configuration has the keys of nemo_sr/training/schema.py; '{key}'{place} is none of them. "
        f"{hint}Correct the key; --help lists the common ones, --cfg job prints them all."
    )


def unknown_choice(group: str, choice: str, conf: Path) -> str:
    """Return what to say of a group's choice that is not there."""
    known = sorted(path.stem for path in (conf / group).glob("*.yaml"))
    return (
        f"'{group}=...' takes a file of {conf / group}; '{choice}' is not there. "
        f"Use one of: {', '.join(known) or 'none: there is no such folder'}."
    )


def wrong_type(key: Key, given: str, where: str | None = None) -> str:
    """Return what to say of a value of another type than the key's."""
    place = f" in {where}.yaml" if where else ""
    default = "" if key.default is None else f" (the default is {key.default})"
    return f"{key.name} must be {key.kind}; it is {given}{place}. Give {key.name} another value{default}."


def _given(text: str) -> str | None:
    """Return what OmegaConf says that a key was given, as it can be shown; None: it speaks of something else."""
    if re.search(r"field '.*' is not Optional", text):
        return "null"
    patterns = (
        r"Value '(.*)' (?:of type|is not)",
        r"Cannot convert '\w+' to string: '(.*)'\n",
        r"Invalid type assigned: .*\. value: (.*)",
    )
    for pattern in patterns:
        if match := re.search(pattern, text):
            return f"'{match[1]}'"
    if match := re.search(r"Invalid value assigned: (\w+) is not a ListConfig|Cannot merge (\w+)Config with", text):
        return f"of type {(match[1] or match[2]).lower()}"
    return None


def _groups(conf: Path) -> list[str]:
    return [path.name for path in conf.iterdir() if path.is_dir()] if conf.is_dir() else []


def _near(key: str, known: Sequence[str]) -> list[str]:
    near = difflib.get_close_matches(key, known, n=3, cutoff=0.6)
    leaf = key.rpartition(".")[2]
    same_leaf = [name for name in known if name.rpartition(".")[2] == leaf]
    return list(dict.fromkeys([*near, *same_leaf]))[:4]
