# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""From a command line to a checked configuration, with errors a person can act on. Imports no NeMo."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from nemo_sr.training.keys import schema_keys
from nemo_sr.training.rewording import reword, unknown_choice, unknown_key, wrong_type
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


@functools.cache
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
    # A composition may run inside another one's Hydra (a test, a notebook): leave that as it was.
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        _check_choices(args.overrides, conf)
        with initialize_config_dir(str(folders[0]), version_base=None):
            composed = compose(name, overrides=[*args.overrides, *more])
        added = [key for key in _flatten(composed) if key not in schema_keys()]  # Hydra lets + add them
        if added:
            raise ConfigError(unknown_key(added[0], conf))
        # One's own file may have left the schema out.
        config = DictConfig(OmegaConf.merge(OmegaConf.structured(PretrainConfig), composed))
        missing = [key for key in schema_keys() if OmegaConf.is_missing(*_parent(config, key))]
        if missing:
            raise ConfigError(f"These keys need a value and have none: {', '.join(missing)}. Give each as key=value.")
        OmegaConf.resolve(config)
    except YAMLError as error:
        raise ConfigError(f"A configuration must be YAML; {' '.join(str(error).split())}. Correct it.") from None
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(reword(error, args.overrides, name, conf)) from None
    finally:
        GlobalHydra.instance().hydra = outer
    return config


def _check_choices(overrides: Sequence[str], conf: Path) -> None:
    """Refuse numbers and lists as a group's choice, on which Hydra fails, and numbers as true or false."""
    for override in OverridesParser.create().parse_overrides(overrides=list(overrides)):
        group, value = override.key_or_group, override.value()
        if not override.is_delete() and (conf / group).is_dir() and not isinstance(value, str | dict):
            raise ConfigError(unknown_choice(group, str(override.input_line).partition("=")[2], conf))
        key = schema_keys().get(group)
        # OmegaConf takes any number for true.
        if key is not None and key.kind == "true or false" and type(value) in (int, float) and value not in (0, 1):
            raise ConfigError(wrong_type(key, f"'{value}'"))


def _parent(config: DictConfig, key: str) -> tuple[DictConfig, str]:
    group, _, leaf = key.rpartition(".")
    return (OmegaConf.select(config, group) if group else config), leaf


def _flatten(node: Any, prefix: str = "") -> Iterator[str]:
    for key in node:
        name = f"{prefix}{key}"
        yield name
        if not OmegaConf.is_missing(node, key) and not OmegaConf.is_interpolation(node, key):
            child = node[key]
            if isinstance(child, DictConfig):
                yield from _flatten(child, f"{name}.")
