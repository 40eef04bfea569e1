# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Whether a checkpoint fits a model and its optimizer, found out before anything is loaded."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from nemo_sr.megatron.checkpoint import match_groups, read_groups
from nemo_sr.megatron.reading import read_common, read_plan
from nemo_sr.options import normalize_options

MASTER_NAMES = ("param", "fp32_param")
"""Under ``optimizer.state``, Megatron's FP32 masters: of the distributed optimizer, and of the other."""

VOCABULARY_KEY = "vocab_size"
"""Where a checkpoint's common part may say how many rows of its embedding are tokens; the others are padding."""

_SHOWN = 5
Wanted = dict[str, tuple[tuple[int, ...], bool]]


def check_checkpoint(
    sharded_state_dict: dict[str, Any], directory: str | Path, *, vocab_size: int | None = None
) -> None:
    """Refuse a checkpoint that does not fit. Call it on all ranks, before dist_checkpointing.load.

    dist_checkpointing.load writes into the model's and the optimizer's own tensors as it reads; what it would only find
    out on the way is found out here: other shapes, missing or foreign tensors, other parameter groups, missing or
    truncated files, another vocabulary.

    Args:
        sharded_state_dict: What is about to be loaded; the optimizer, if any, under "optimizer". Without it the
            checkpoint's may be left unread.
        directory: The checkpoint.
        vocab_size: The model's number of tokens, which must be the checkpoint's ``vocab_size``; then the padding of the
            vocabulary may differ. Of a checkpoint that has none, the padded size must be the model's. None: unchecked.

    Raises:
        ValueError: it does not fit. The same on all ranks; no tensor has been written to.
    """
    everyone: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(everyone, _wanted(sharded_state_dict))
    found: list[Any] = [None]
    if torch.distributed.get_rank() == 0:
        wanted = {key: value for rank in everyone for key, value in rank.items()}
        found[0] = _find_misfit(wanted, sharded_state_dict, Path(directory), vocab_size)
    torch.distributed.broadcast_object_list(found, src=0)
    if found[0]:
        raise ValueError(
            f"a checkpoint must fit the model and the optimizer that load it; {directory} does not: {found[0]}. "
            "Nothing has been loaded. Configure the model as it was when the checkpoint was written, or choose another."
        )


def find_masters(metadata: Metadata) -> str | None:
    """Return under which of MASTER_NAMES a checkpoint has FP32 masters, or None if it has none."""
    prefixes = {key.split(".")[2] for key in metadata.state_dict_metadata if key.startswith("optimizer.state.")}
    return next((name for name in MASTER_NAMES if name in prefixes), None)


def _wanted(sharded_state_dict: dict[str, Any]) -> Wanted:
    """Return the whole shape of every tensor, and whether its rows may be padded differently."""
    wanted = {}
    for value in nested_values(sharded_state_dict):
        for entry in nested_values(value.build()) if isinstance(value, ShardedTensorFactory) else [value]:
            if isinstance(entry, ShardedTensor):
                wanted[entry.key] = (tuple(entry.global_shape), entry.allow_shape_mismatch)
    return wanted


def _find_misfit(wanted: Wanted, present: dict[str, Any], directory: Path, vocab_size: int | None) -> str | None:
    try:
        metadata, common = read_plan(directory), read_common(directory)
        misfits = [
            *_compare_tensors(wanted, metadata, unread=() if "optimizer" in present else ("optimizer.",)),
            *_compare_vocabularies(wanted, metadata, common, vocab_size),
            *_compare_groups(present, common),
            *_find_damage(metadata, directory),
        ]
    except Exception as error:  # whatever a damaged file brings about: the other ranks wait for an answer
        return f"it cannot be read ({type(error).__name__}: {error})"
    return "; ".join(misfits) or None


def _compare_tensors(wanted: Wanted, metadata: Metadata, *, unread: tuple[str, ...]) -> Iterator[str]:
    saved = {k: v for k, v in metadata.state_dict_metadata.items() if isinstance(v, TensorStorageMetadata)}
    if missing := [key for key in wanted if key not in saved]:
        yield f"it lacks {_list(missing)}"
        if any(key.startswith("optimizer.distributed.") for key in saved):
            yield "its optimizer is in the dp_reshardable format, which that sharding type alone reads"
    known = (*(f"optimizer.state.{name}." for name in MASTER_NAMES), *unread)
    if foreign := [key for key in saved if key not in wanted and not key.startswith(known)]:
        yield f"it has {_list(foreign)}, which are not wanted"
    for key, (shape, flexible) in wanted.items():
        if key not in saved:
            continue
        size = tuple(saved[key].size)
        if size != shape and not (flexible and size[1:] == shape[1:]):
            yield f"{key} has the shape {size}, and {shape} is wanted"
            return  # one example says it
        if sum(math.prod(chunk.sizes) for chunk in saved[key].chunks) != math.prod(size):
            yield f"parts of {key} were not saved"


def _compare_vocabularies(
    wanted: Wanted, metadata: Metadata, common: Mapping[str, Any], vocab_size: int | None
) -> Iterator[str]:
    if vocab_size is None:
        return
    saved = common.get(VOCABULARY_KEY)
    if saved is not None:
        if saved != vocab_size:
            yield f"its vocabulary has {saved} tokens, and {vocab_size} are wanted"
        return
    for key, (shape, flexible) in wanted.items():
        entry = metadata.state_dict_metadata.get(key)
        if flexible and isinstance(entry, TensorStorageMetadata) and entry.size[0] != shape[0]:
            yield (
                f"it does not say how many of the {entry.size[0]} rows of {key} are tokens, and {shape[0]} rows are "
                "wanted (pad alike, by make_vocab_size_divisible_by, if the vocabulary is the same)"
            )
            return


def _compare_groups(present: dict[str, Any], common: Mapping[str, Any]) -> Iterator[str]:
    optimizer, saved = present.get("optimizer", {}), common.get("optimizer", {})
    groups = optimizer.get("optimizer")
    pairs = [(optimizer, saved)] if groups is not None else [(optimizer[i], saved.get(i, {})) for i in optimizer]
    for mine, other in pairs:
        groups = mine.get("optimizer")
        if not isinstance(groups, dict):
            continue  # dp_reshardable keeps them among the shards
        try:
            saved_groups, _ = read_groups(other)
            if all("noise_version" in group for side in (saved_groups, groups["param_groups"]) for group in side):
                for group in match_groups(saved_groups, groups["param_groups"]):
                    normalize_options({**group, "params": []})
        except (TypeError, ValueError) as error:
            yield str(error).rstrip(".")


def _find_damage(metadata: Metadata, directory: Path) -> Iterator[str]:
    ends: dict[str, int] = {}
    for place in metadata.storage_data.values():
        ends[place.relative_path] = max(ends.get(place.relative_path, 0), place.offset + place.length)
    sizes = {name: (directory / name).stat().st_size if (directory / name).is_file() else None for name in ends}
    if missing := [name for name, size in sizes.items() if size is None]:
        yield f"its files {_list(missing)} are missing"
    if cut := [name for name, size in sizes.items() if size is not None and size < ends[name]]:
        yield f"its files {_list(cut)} are truncated"


def _list(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
