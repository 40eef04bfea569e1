# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Saving a run's checkpoints: whole or not at all, at once or while training goes on."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import megatron.core
import torch

import nemo_sr
from nemo_sr.megatron.saving import BackgroundSave, num_bytes_here
from nemo_sr.noise import NOISE_VERSION
from nemo_sr.training.manifest import (
    REQUIRED_FILES,
    STATE_FILE,
    DamagedError,
    Manifest,
    describe_file,
    flush,
    write_durably,
    write_manifest,
)
from nemo_sr.training.run_folder import (
    SaveError,
    checkpoint_name,
    delete_others,
    find_partial,
    megabytes,
    partial_name,
    publish,
)
from nemo_sr.training.run_lock import find_other_writer, lock_file

_SPARE_BYTES = 1 << 20  # what a checkpoint holds beside tensors


@dataclass(frozen=True)
class About:
    """What a checkpoint says about itself, beside its tensors."""

    step: int
    consumed_samples: int
    val_loss: float | None
    layout: Mapping[str, int]
    run_state: Mapping[str, Any]
    """Content of ``run_state.json``."""


class CheckpointWriter:
    """Writes a run's checkpoints and deletes those that are no longer wanted. Every method is collective.

    A checkpoint is written under another name; it gets its own by one rename, after all ranks have written, and its
    manifest has been checked against the files. At most one is under way.

    Args:
        folder: The run's folder of checkpoints, on storage that all ranks share.
        asynchronous: Return from :meth:`save` once the state is captured, and write while training goes on.
        newest: How many of the newest to keep; -1 for all.
        best: How many with the lowest validation loss to keep; -1 for all.
    """

    def __init__(self, folder: Path, *, asynchronous: bool, newest: int, best: int) -> None:
        self.folder = folder
        self.asynchronous = asynchronous
        self.newest: Path | None = None
        """The checkpoint that was published last."""
        self.stalled_seconds = 0.0
        """How long training has waited for saves."""
        self._keep = {"newest": newest, "best": best}
        self._under_way: tuple[BackgroundSave, About] | None = None

    def save(self, sharded_state_dict: dict[str, Any], about: About) -> None:
        """Save a checkpoint, after the one that is under way.

        Raises:
            SaveError: this one or that one could not be saved. The checkpoints before it are as they were.
        """
        self.finish(wait=True)
        began = time.monotonic()
        self._make_room(num_bytes_here(sharded_state_dict), about.step)
        partial = self.folder / partial_name(about.step)
        self._under_way = BackgroundSave(sharded_state_dict, partial, describe_file), about
        self.stalled_seconds += time.monotonic() - began
        self.finish(wait=not self.asynchronous)

    def finish(self, *, wait: bool) -> None:
        """Publish the checkpoint that is under way, if all ranks have written it.

        Args:
            wait: Wait until they have.

        Raises:
            SaveError: it could not be saved.
        """
        if self._under_way is None:
            return
        began = time.monotonic()
        save, about = self._under_way
        try:
            if not save.is_done(wait=wait):
                return
        except RuntimeError as error:
            self._under_way = None
            raise self._error(about.step, str(error)) from None
        finally:
            self.stalled_seconds += time.monotonic() - began
        began = time.monotonic()
        self._under_way = None
        self._publish(save.described, about)
        self.stalled_seconds += time.monotonic() - began

    def _make_room(self, num_bytes: int, step: int) -> None:
        partial = self.folder / partial_name(step)
        problem = self._find_other_writer() if torch.distributed.get_rank() == 0 else None
        if torch.distributed.get_rank() == 0 and problem is None:
            try:
                if partial.exists():
                    shutil.rmtree(partial)
                partial.mkdir(parents=True)
            except OSError as error:
                problem = str(error)
        self._raise_if_any(problem, step)
        free = shutil.disk_usage(partial).free if partial.is_dir() else None
        everyone = _gather((num_bytes, free))
        blind = [rank for rank, (_, free) in enumerate(everyone) if free is None]
        if blind:
            self._fail(step, f"all ranks must share the folder's storage; {partial} is not there on ranks {blind}")
        needed = sum(num_bytes for num_bytes, _ in everyone) + _SPARE_BYTES
        available = min(free for _, free in everyone if free is not None)
        if available < needed:
            others = [path.name for path in find_partial(self.folder) if path != partial]
            more = f" (interrupted saves that may be deleted: {', '.join(others)})" if others else ""
            self._fail(
                step, f"it takes {megabytes(needed)}, and {megabytes(available)} are free in {self.folder}{more}"
            )

    def _find_other_writer(self) -> str | None:
        owner = find_other_writer(self.folder.parent)
        if owner is None:
            return None
        return f"a run must have one writer, and that is {owner} now, as {lock_file(self.folder.parent)} says"

    def _publish(self, described: dict[str, Any], about: About) -> None:
        files = {name: entry for rank in _gather(described) for name, entry in rank.items()}
        problem = self._find_other_writer() if torch.distributed.get_rank() == 0 else None
        if torch.distributed.get_rank() == 0 and problem is None:
            partial = self.folder / partial_name(about.step)
            try:
                write_durably(partial / STATE_FILE, about.run_state)
                for name in REQUIRED_FILES:
                    flush(partial / name)
                    files[name] = describe_file(partial / name)
                manifest = Manifest(
                    step=about.step,
                    consumed_samples=about.consumed_samples,
                    val_loss=about.val_loss,
                    layout=about.layout,
                    versions=_versions(),
                    files=files,
                )
                write_manifest(partial, manifest)
                publish(self.folder, about.step)
            except (OSError, DamagedError) as error:
                problem = str(error)
        self._raise_if_any(problem, about.step)
        self.newest = self.folder / checkpoint_name(about.step)
        if torch.distributed.get_rank() == 0:
            try:
                delete_others(self.folder, **self._keep)
            except OSError as error:
                # The new one is there. What this costs is room, and the next save looks for that.
                print(f"warning: an old checkpoint could not be deleted: {error}", file=sys.stderr)  # noqa: T201
        torch.distributed.barrier()

    def _raise_if_any(self, problem: str | None, step: int) -> None:
        problems = [f"rank {rank}: {found}" for rank, found in enumerate(_gather(problem)) if found is not None]
        if problems:
            self._fail(step, "; ".join(problems))

    def _fail(self, step: int, reason: str) -> None:
        raise self._error(step, reason)

    def _error(self, step: int, reason: str) -> SaveError:
        return SaveError(
            f"The checkpoint of step {step} could not be saved: {reason}. The newest complete checkpoint is "
            f"{self.newest or 'none'}, untouched; what there is of this one is in {self.folder / partial_name(step)}. "
            "Remove the cause, and start the same command again."
        )


def _gather(mine: Any) -> list[Any]:
    everyone: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(everyone, mine)
    return everyone


def _versions() -> dict[str, str]:
    return {
        "nemo_sr": nemo_sr.__version__,
        "noise": str(NOISE_VERSION),
        "torch": torch.__version__,
        "megatron-core": megatron.core.__version__,
    }
