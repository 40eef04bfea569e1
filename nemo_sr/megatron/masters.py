# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Turns a checkpoint of adamw_sr into one that Megatron's own Adam loads by Megatron's own methods.

Megatron's Adam asks for FP32 masters. They would be the BF16 weights, which the checkpoint has: so the table of
contents gets entries for masters that point at the weights, and not a byte of a tensor is read or written.
"""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nemo_sr.megatron.checkpoint import FORMAT, read_groups
from nemo_sr.megatron.fitting import MASTER_NAMES, find_masters
from nemo_sr.megatron.reading import COMMON_FILE, COMMON_OBJECT, PLAN_FILE, read_common, read_plan

_BACKEND = "metadata.json"
_OWN_OPTIONS = ("seed", "noise_version", "exp_avg_rounding", "exp_avg_sq_rounding", "param_names")


def add_masters(source: Path, target: Path) -> None:
    """Write a checkpoint with masters; its tensors are links to the files of the one without, or copies of them.

    Args:
        source: A checkpoint of adamw_sr, with model and optimizer.
        target: The new checkpoint's folder. It appears when it is complete.

    Raises:
        ValueError: the source is not a checkpoint of adamw_sr, or the target exists.
    """
    if missing := [name for name in (PLAN_FILE, _BACKEND) if not (source / name).is_file()]:
        raise ValueError(
            f"the source must be a folder of Megatron-core's torch_dist format; {source} lacks {', '.join(missing)}. "
            "Give the checkpoint's own folder."
        )
    if target.exists():
        raise ValueError(f"the new checkpoint must have a folder of its own; {target} exists. Choose another.")
    metadata = read_plan(source)
    common = read_common(source)
    common = {**common, "optimizer": _with_stock_groups(common.get("optimizer", {}), source)}
    if find_masters(metadata) is not None:
        raise ValueError(f"the source must have no FP32 masters; {source} has some. Megatron's Adam loads it as it is.")
    partial = target.with_name(f"partial_{target.name}")
    partial.mkdir(parents=True)
    try:
        for name in sorted({place.relative_path for place in metadata.storage_data.values()}):
            _link_or_copy(source / name, partial / name)
        shutil.copyfile(source / _BACKEND, partial / _BACKEND)
        torch.save(common, partial / COMMON_FILE)
        with open(partial / PLAN_FILE, "wb") as file:
            pickle.dump(_with_masters(metadata), file)
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial)
        raise


def _with_masters(metadata: Any) -> Any:
    prefix = "optimizer.state.exp_avg."
    weights = [key.removeprefix(prefix) for key in metadata.state_dict_metadata if key.startswith(prefix)]
    tensors = {key: entry for key, entry in metadata.state_dict_metadata.items() if key != COMMON_OBJECT}
    places = {index: place for index, place in metadata.storage_data.items() if index.fqn != COMMON_OBJECT}
    for name in MASTER_NAMES:
        tensors.update({f"optimizer.state.{name}.{key}": tensors[key] for key in weights})
        wanted = set(weights)
        for index, place in metadata.storage_data.items():
            if index.fqn in wanted:
                places[replace(index, fqn=f"optimizer.state.{name}.{index.fqn}")] = place
    return replace(metadata, state_dict_metadata=tensors, storage_data=places)


def _with_stock_groups(optimizer: Mapping[Any, Any], source: Path) -> dict[Any, Any]:
    """Return the optimizer's common part as both of Megatron's optimizers with masters read it."""
    if optimizer and "optimizer" not in optimizer:  # a chain of several
        return {link: _with_stock_groups(part, source) for link, part in optimizer.items()}
    groups, step = read_groups(optimizer)
    if not all("noise_version" in group for group in groups):
        raise ValueError(f"the source must be a checkpoint of adamw_sr; {source} is another optimizer's.")
    stock = [{**{k: v for k, v in group.items() if k not in _OWN_OPTIONS}, "step": step} for group in groups]
    return {
        "optimizer": {"param_groups": stock, "state": {"common_step": torch.tensor(float(step))}},
        "param_state_sharding_type": FORMAT,
    }


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)
