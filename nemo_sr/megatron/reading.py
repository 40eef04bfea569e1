# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Reading Megatron-core's distributed checkpoints as data: nothing in their files is run.

Of the four kinds of bytes that megatron-core 0.16.1 and torch 2.13 read, three may hold a pickle that runs code:

=============================  ============================  ========================================================
bytes                          read by                       here
=============================  ============================  ========================================================
``.metadata``                  ``pickle.load``               an unpickler that knows the classes of a plan, no others
objects beside the tensors     ``torch.load`` with           ``weights_only=True``
(random states, extra state)   ``weights_only=False``
``common.pt``, from 0.19 on    ``torch.load``, its default   ``weights_only=True``, whatever the environment says
one of those objects
tensors                        ``torch.load`` with           the same
                               ``weights_only=True``
=============================  ============================  ========================================================

The paths in ``.metadata`` may point anywhere; here they must be files of the checkpoint. Transformer Engine unpickles
extra state by itself, where there is any (FP8); it is refused.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint._nested_dict import set_element  # type: ignore[attr-defined]
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan

PLAN_FILE = ".metadata"
COMMON_FILE = "common.pt"
COMMON_OBJECT = "common_state/shard_0_1"
"""Where Megatron-core keeps what is beside the tensors from 0.19 on, which writes no COMMON_FILE."""

_PLAN_CLASSES = {
    # The folder it was written to; Megatron-core writes text, torch by itself a path.
    "pathlib": {"PosixPath"},
    "pathlib._local": {"PosixPath"},
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},  # looks a layout up by its name
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo", "_StoragePrefix"},
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.planner": {
        "BytesIOWriteData",
        "SavePlan",
        "TensorWriteData",
        "WriteItem",
        "WriteItemType",
    },
}


class _MegatronMetadata(Metadata):
    """Takes the place of Megatron-core's own class of plans, which 0.15 alone writes."""

    mcore_data: Any = None


class _MegatronSavePlan(SavePlan):
    """Takes the place of Megatron-core's own class of a rank's plan, which 0.14 and 0.15 write."""

    mcore_data: Any = None


_MEGATRON_CLASSES = {"MCoreMetadata": _MegatronMetadata, "MCoreSavePlan": _MegatronSavePlan}


class UnsafeError(ValueError):
    """A checkpoint holds something else than data."""


def read_plan(folder: Path, files: Collection[str] | None = None) -> Metadata:
    """Return which tensors a checkpoint holds, and where in its files.

    Args:
        folder: The checkpoint.
        files: Names of the files that it may read; None: all in `folder`, links excepted.

    Raises:
        UnsafeError: ``.metadata`` needs a class that no plan has, points outside `files`, or is no plan.
    """
    file = folder / PLAN_FILE
    try:
        with open(file, "rb") as stream:
            plan = _PlanUnpickler(stream).load()
    except OSError:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        raise UnsafeError(f"{file} must be a plan of torch's distributed checkpoints; {error}") from None
    problem = _find_problem(plan, folder, files)
    if problem is not None:
        raise UnsafeError(f"{file} must describe tensors in the checkpoint's own files; {problem}")
    return plan  # type: ignore[no-any-return]


def read_common(folder: Path) -> dict[str, Any]:
    """Return what a checkpoint holds beside tensors.

    Raises:
        UnsafeError: it is something else than data.
    """
    file = folder / COMMON_FILE
    try:
        if file.exists():
            return dict(torch.load(file, map_location="cpu", weights_only=True))
        return dict(_read_object(folder, COMMON_OBJECT))
    except pickle.UnpicklingError as error:
        raise _unsafe(folder, error) from None


def _read_object(folder: Path, name: str) -> Any:
    places = {index.fqn: place for index, place in read_plan(folder).storage_data.items()}
    if name not in places:
        raise FileNotFoundError(f"{folder} must have {COMMON_FILE}, or {name} in its plan; it has neither")
    place = places[name]
    with open(folder / place.relative_path, "rb") as stream:
        stream.seek(place.offset)
        return torch.load(io.BytesIO(stream.read(place.length)), map_location="cpu", weights_only=True)[0]


def load_as_data(
    sharded_state_dict: dict[str, Any], folder: Path, files: Collection[str] | None = None
) -> dict[str, Any]:
    """Call Megatron-core's ``dist_checkpointing.load`` so that it reads data and runs nothing.

    Collective, as that function is.

    Args:
        sharded_state_dict: What to load, and into what.
        folder: The checkpoint.
        files: As in :func:`read_plan`.

    Raises:
        UnsafeError: the checkpoint holds something else than data; on every rank.
    """
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.strategies import torch as strategies

    plan = read_plan(folder, files)

    class Reader(FileSystemReader):
        def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
            return plan

    class Planner(strategies.MCoreLoadPlanner):  # type: ignore[misc]
        def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
            name = read_item.dest_index.fqn
            loaded = torch.load(value, weights_only=True)
            _refuse_extra_state(name, loaded)
            if self.flatten_state_dict:
                set_element(self.original_state_dict, self.mappings[name], loaded)
            else:
                self.state_dict[name] = loaded

    def make_reader(checkpoint_dir: Any, cache_metadata: bool = False) -> Reader:
        return Reader(checkpoint_dir)

    try:
        with (
            _replaced(strategies, "_get_filesystem_reader", make_reader),
            _replaced(strategies, "MCoreLoadPlanner", Planner),
            _default_weights_only(),
        ):
            return dict(dist_checkpointing.load(sharded_state_dict, str(folder)))
    except CheckpointException as error:
        causes = [cause for cause, _ in error.failures.values() if isinstance(cause, pickle.UnpicklingError)]
        if not causes:
            raise
        raise _unsafe(folder, causes[0]) from None
    except pickle.UnpicklingError as error:
        raise _unsafe(folder, error) from None


def _unsafe(folder: Path, error: Exception) -> UnsafeError:
    first = str(error).strip().splitlines()[0]
    return UnsafeError(f"{folder} must hold tensors, numbers and text alone; reading it stopped with: {first}")


class _PlanUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return a class that plans consist of.

        Raises:
            pickle.UnpicklingError: it is another.
        """
        if name in _PLAN_CLASSES.get(module, ()):
            return super().find_class(module, name)
        if module == "megatron.core.dist_checkpointing.strategies.torch" and name in _MEGATRON_CLASSES:
            return _MEGATRON_CLASSES[name]
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no plan has")


def _find_problem(plan: Any, folder: Path, files: Collection[str] | None) -> str | None:
    if not isinstance(plan, Metadata):
        return f"it holds a {type(plan).__name__}"
    entries, places = getattr(plan, "state_dict_metadata", None), getattr(plan, "storage_data", None)
    if not isinstance(entries, dict) or not isinstance(places, dict):
        return "its lists of tensors and places are missing"
    for name, entry in entries.items():
        if not isinstance(name, str) or not isinstance(entry, (TensorStorageMetadata, BytesStorageMetadata)):
            return f"its entry {name!r:.80} is neither a tensor nor bytes"
    for place in places.values():
        path = getattr(place, "relative_path", None)
        if not (_is_own_file(folder, path) if files is None else path in files):
            return f"it points to {path!r:.80}"
        if getattr(place, "transform_descriptors", None):
            return f"{path} is transformed by {place.transform_descriptors!r:.80}"
    return None


def _is_own_file(folder: Path, name: Any) -> bool:
    # It may be missing, which is told apart from leading elsewhere.
    if not isinstance(name, str) or name != os.path.basename(name) or name in ("", ".", ".."):
        return False
    file = folder / name
    return not file.is_symlink() and (file.is_file() or not file.exists())


def _refuse_extra_state(name: str, loaded: Any) -> None:
    if "_extra_state" not in name:
        return
    for state in loaded if isinstance(loaded, list) else [loaded]:
        if isinstance(state, torch.Tensor) and state.numel():
            raise pickle.UnpicklingError(f"{name} is a pickle for Transformer Engine (FP8), which is not supported")


@contextlib.contextmanager
def _replaced(owner: Any, name: str, stand_in: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, stand_in)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextlib.contextmanager
def _default_weights_only() -> Iterator[None]:
    variable = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
    before = os.environ.pop(variable, None)
    try:
        yield
    finally:
        if before is not None:
            os.environ[variable] = before
