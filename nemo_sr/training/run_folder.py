# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The folder of a run's checkpoints: which are complete, which are kept, and how one appears or goes in one instant.

==================  ===================================================================================================
name                what it is
==================  ===================================================================================================
step_XXXXXXXX       a checkpoint, complete if its manifest agrees with its files
partial_step_...    a save that was interrupted, or is under way; left alone until its step is saved again
deleted_step_...    a checkpoint whose deletion was interrupted; the next deletion goes on with it
==================  ===================================================================================================
"""

from __future__ import annotations

import math
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nemo_sr.training.manifest import (
    SHARD_SUFFIX,
    DamagedError,
    Manifest,
    check_sizes,
    find_altered,
    flush,
    read_manifest,
)

_PARTIAL = "partial_"
_DELETED = "deleted_"
_NAME = re.compile(rf"(?:{_PARTIAL})?(step_(\d{{8,}}))")


class SaveError(RuntimeError):
    """A checkpoint could not be saved; raised on every rank."""


@dataclass(frozen=True)
class Checkpoint:
    """What was found under a checkpoint's name."""

    path: Path
    step: int
    state: Literal["complete", "partial", "damaged"]
    """Damaged: under a complete one's name, but not complete."""

    reason: str = ""
    """Why it is not complete."""

    manifest: Manifest | None = None
    """What it says about itself, if that can be read."""


def megabytes(num_bytes: int) -> str:
    """Write a size for a person."""
    return f"{num_bytes / 1e6:.1f} MB"


def checkpoint_name(step: int) -> str:
    """Return the name of the checkpoint of `step`."""
    return f"step_{step:08d}"


def partial_name(step: int) -> str:
    """Return the name under which the checkpoint of `step` is written."""
    return f"{_PARTIAL}{checkpoint_name(step)}"


def find_checkpoints(folder: Path) -> list[Checkpoint]:
    """Return what is in `folder`, by step; each is examined as :func:`examine` does."""
    if not folder.is_dir():
        return []
    return sorted(
        (examine(path) for path in folder.iterdir() if _NAME.fullmatch(path.name)),
        key=lambda found: (found.step, found.path.name),
    )


def find_partial(folder: Path) -> list[Path]:
    """Return the saves in `folder` that were interrupted, or are under way."""
    return sorted(folder.glob(f"{_PARTIAL}step_*"))


def examine(path: Path) -> Checkpoint:
    """Return the state of a checkpoint, as :func:`read_whole` finds it."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        return Checkpoint(path, 0, "damaged", "it must be called step_ and eight digits")
    step = int(match[2])
    if match[1] != path.name:
        return Checkpoint(path, step, "partial", "its save was interrupted, or is under way")
    try:
        manifest = read_whole(path)
        if manifest.step != step:
            raise DamagedError(f"its manifest is that of step {manifest.step}")
    except DamagedError as error:
        return Checkpoint(path, step, "damaged", str(error), _read_what_there_is(path))
    return Checkpoint(path, step, "complete", manifest=manifest)


def read_whole(path: Path) -> Manifest:
    """Return the manifest of a checkpoint, after comparing it with all sizes and with all files but the shards.

    The shards hold nearly all bytes: :func:`~nemo_sr.training.manifest.find_altered` reads them.

    Raises:
        DamagedError: it is not complete.
    """
    if path.is_symlink() or not path.is_dir():
        raise DamagedError("it must be a folder, and no link")
    manifest = read_manifest(path)
    check_sizes(path, manifest)
    altered = find_altered(path, manifest, [name for name in manifest.files if not name.endswith(SHARD_SUFFIX)])
    if altered:
        raise DamagedError(altered[0])
    return manifest


def _read_what_there_is(path: Path) -> Manifest | None:
    try:
        return read_manifest(path)
    except DamagedError:
        return None


def publish(folder: Path, step: int) -> Path:
    """Give the checkpoint of `step`, all written, its final name, and make that survive a power cut.

    Returns:
        Where it is now.
    """
    partial, target = folder / partial_name(step), folder / checkpoint_name(step)
    flush(partial)
    replaced = _set_aside(target) if target.is_symlink() or target.exists() else None  # a damaged one
    partial.rename(target)
    flush(folder)
    if replaced is not None:
        _remove(replaced)
    return target


def choose_kept(found: list[Checkpoint], *, newest: int, best: int) -> set[Path]:
    """Return the complete checkpoints to keep: the newest, and those with the lowest validation loss.

    Args:
        found: All checkpoints of the run.
        newest: How many of the newest; -1 for all.
        best: How many of the best, among those with a validation loss; -1 for all. The newer one wins a tie.
    """
    complete = [checkpoint for checkpoint in found if checkpoint.state == "complete"]
    by_step = sorted(complete, key=lambda checkpoint: checkpoint.step, reverse=True)
    by_loss = sorted((checkpoint for checkpoint in by_step if _loss(checkpoint) < math.inf), key=_loss)
    kept = [*(by_step if newest == -1 else by_step[:newest]), *(by_loss if best == -1 else by_loss[:best])]
    return {checkpoint.path for checkpoint in kept}


def delete_others(folder: Path, *, newest: int, best: int) -> None:
    """Delete the complete checkpoints that :func:`choose_kept` does not name; touch nothing else.

    Raises:
        OSError: one cannot be deleted.
    """
    found = find_checkpoints(folder)
    kept = choose_kept(found, newest=newest, best=best)
    for checkpoint in found:
        if checkpoint.state == "complete" and checkpoint.path not in kept:
            # Renamed first: a deletion that is interrupted must not leave half a checkpoint under a whole one's name.
            _set_aside(checkpoint.path)
    for doomed in folder.glob(f"{_DELETED}step_*"):
        _remove(doomed)


def _set_aside(path: Path) -> Path:
    doomed = path.with_name(f"{_DELETED}{path.name}")
    if doomed.exists():
        _remove(doomed)
    return path.rename(doomed)


def _remove(path: Path) -> None:
    if path.is_symlink() or not path.is_dir():
        path.unlink()
    else:
        shutil.rmtree(path)


def _loss(checkpoint: Checkpoint) -> float:
    loss = checkpoint.manifest.val_loss if checkpoint.manifest else None
    return math.inf if loss is None else loss
