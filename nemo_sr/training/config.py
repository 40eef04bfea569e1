# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""From a command line to a checked configuration, with errors a person can act on. Imports no NeMo."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nemo_sr.training.schema import PretrainConfig

DEFAULT_CONFIG = "gpt_tiny_cpu"
SCHEMA = "pretrain_schema"

# NeMo 1.x kept these groups inside the model.
_MOVED = re.compile(r"^(\+\+|\+|~)?model\.(optim|data)(?=[.=@]|$)")


class ConfigError(ValueError):
    """A configuration that cannot run; the message says what was required, what was given and what to do."""


def find_conf() -> Path:
    """Return the folder of the Hydra configurations.

    A checkout (an editable install as well) has it beside the package, an installed copy inside the package.

    Raises:
        ConfigError: neither is there.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / f"{DEFAULT_CONFIG}.yaml").is_file():
            return folder
    raise ConfigError(
        f"The configurations must lie in {package / 'conf'} or {package.parent / 'conf'}; neither holds "
        f"{DEFAULT_CONFIG}.yaml. Install nemo_sr again."
    )


def register_schema() -> None:
    """Give Hydra the schema under the name that the primary configurations list among their defaults."""
    ConfigStore.instance().store(name=SCHEMA, node=PretrainConfig)


def rewrite_argv(argv: Sequence[str]) -> list[str]:
    """Return `argv` with NeMo 1.x's ``model.optim.*`` and ``model.data.*`` as ``optim.*`` and ``data.*``.

    The forms with ``+`` lose it: the schema has the key, and Hydra's ``+`` means that it has not.
    """
    return [_MOVED.sub(lambda match: ("~" if match[1] == "~" else "") + match[2], word) for word in argv]


def compose_config(argv: Sequence[str]) -> DictConfig:
    """Compose the configuration that `argv` asks for, the way Hydra's own command line would.

    Args:
        argv: The command line after the program's name, rewritten by :func:`rewrite_argv`.

    Returns:
        The configuration, complete and with every interpolation resolvable.

    Raises:
        ConfigError: with the key, what is near it and what to do.
    """
    args = get_args_parser().parse_args(list(argv))
    if args.multirun:
        raise ConfigError(
            "One start trains one run; --multirun asks for several. Start the command once for each value, with "
            "another exp_manager.name each time."
        )
    conf = Path(args.config_path or find_conf()).resolve()
    name = args.config_name or DEFAULT_CONFIG
    folders = [conf]
    if args.config_dir:
        own = Path(args.config_dir).resolve()
        folders = [own, conf] if (own / f"{name.removesuffix('.yaml')}.yaml").is_file() else [conf, own]
    more = [f"hydra.searchpath=[file://{folder}]" for folder in folders[1:]]
    register_schema()
    known = set(_known_keys())
    # A composition may run inside another one's Hydra (a test, a notebook): leave that as it was.
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(folders[0]), version_base=None):
            config = compose(name, overrides=[*args.overrides, *more])
        added = [key for key in _flatten(config) if key not in known]  # Hydra lets + add what the schema does not have
        if added:
            raise ConfigError(_unknown_key(added[0], conf))
        missing = sorted(OmegaConf.missing_keys(config))
        if missing:
            raise ConfigError(f"These keys need a value and have none: {', '.join(missing)}. Give each as key=value.")
        OmegaConf.resolve(config)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_reword(error, args, conf)) from None
    finally:
        GlobalHydra.instance().hydra = outer
    return DictConfig(config)


def _reword(error: Exception, args: argparse.Namespace, conf: Path) -> str:
    # Hydra wraps OmegaConf's error, which alone says what is wrong.
    messages = [str(error)]
    cause = error.__cause__ or error.__context__
    while cause is not None:
        messages.append(str(cause))
        cause = cause.__cause__ or cause.__context__
    text = "\n".join(messages)
    for override in args.overrides:
        key = re.split(r"[=@]", override.lstrip("+~"), maxsplit=1)[0]
        leaf = key.rpartition(".")[2]
        if re.search(rf"(Key|Could not (find|override|append|delete)).*'?{re.escape(leaf)}'?", text) and (
            key not in _known_keys() and key not in _groups(conf)
        ):
            return _unknown_key(key, conf)
    if "Cannot find primary config" in text:
        known = sorted(path.stem for path in conf.glob("*.yaml"))
        return (
            f"--config-name must name a file in {conf}; '{args.config_name}' is not there. "
            f"Use one of: {', '.join(known)}."
        )
    if match := re.search(r"Could not find '?([\w/]+)/([\w.-]+)'?", text):
        group, choice = match[1], match[2]
        known = sorted(path.stem for path in (conf / group).glob("*.yaml"))
        return (
            f"'{group}=...' takes a file of {conf / group}; '{choice}' is not there. "
            f"Use one of: {', '.join(known) or 'none: there is no such folder'}."
        )
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


def _unknown_key(key: str, conf: Path) -> str:
    near = _near(key, _known_keys() if "." in key else [*_known_keys(), *_groups(conf)])
    hint = f"Near it: {', '.join(near)}. " if near else ""
    return (
        f"A configuration has the keys of nemo_sr/training/schema.py; '{key}' is none of them. "
        f"{hint}Correct the key; --help lists the common ones, --cfg job prints them all."
    )


def _known_keys() -> list[str]:
    return list(_flatten(OmegaConf.structured(PretrainConfig)))


def _flatten(node: Any, prefix: str = "") -> Iterator[str]:
    for key in node:
        name = f"{prefix}{key}"
        yield name
        if not OmegaConf.is_missing(node, key) and not OmegaConf.is_interpolation(node, key):
            child = node[key]
            if isinstance(child, DictConfig):
                yield from _flatten(child, f"{name}.")


def _groups(conf: Path) -> list[str]:
    return [path.name for path in conf.iterdir() if path.is_dir()] if conf.is_dir() else []


def _near(key: str, known: Sequence[str]) -> list[str]:
    near = difflib.get_close_matches(key, known, n=3, cutoff=0.6)
    leaf = key.rpartition(".")[2]
    same_leaf = [name for name in known if name.rpartition(".")[2] == leaf]
    return list(dict.fromkeys([*near, *same_leaf]))[:4]
