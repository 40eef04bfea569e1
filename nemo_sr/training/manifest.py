# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint consists of: every file with its size and SHA-256; written last, checked first.

A manifest tells a whole checkpoint from one that is cut off, altered on its way, or mixed from two. It proves nothing
about who wrote it (SECURITY.md).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MANIFEST_FILE = "manifest.json"
MANIFEST_FORMAT = 1
STATE_FILE = "run_state.json"
REQUIRED_FILES = (STATE_FILE, ".metadata", "common.pt", "metadata.json")
"""What every checkpoint has beside its shards; all of it is small."""

SHARD_SUFFIX = ".distcp"
_MAX_BYTES = 1 << 26  # of the manifest itself; it has some 130 bytes a file
_CHUNK = 1 << 22


class DamagedError(ValueError):
    """A checkpoint is not what its manifest says, or has none that can be read."""


@dataclass(frozen=True)
class FileEntry:
    """Size and checksum of a file."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint says about itself."""

    step: int
    """Optimizer steps that are done."""

    consumed_samples: int
    """Training samples that they used."""

    val_loss: float | None
    """Validation loss at this very step; None if there was no validation."""

    layout: Mapping[str, int]
    """Ranks, and how the model was cut over them."""

    versions: Mapping[str, str]
    """Versions of the packages that wrote it, and of the rounding noise."""

    files: Mapping[str, FileEntry]
    """Every file beside the manifest, by name."""


def describe_file(file: Path) -> FileEntry:
    """Return size and checksum of `file`, read as it is now."""
    digest, size = hashlib.sha256(), 0
    with open(file, "rb", buffering=0) as stream:
        while block := stream.read(_CHUNK):
            digest.update(block)
            size += len(block)
    return FileEntry(size, digest.hexdigest())


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of a checkpoint whose other files are all there; flush it to the disk.

    Raises:
        DamagedError: a file is not as the manifest says.
    """
    check_sizes(folder, manifest)
    write_durably(folder / MANIFEST_FILE, {"format": MANIFEST_FORMAT, **asdict(manifest)})
    check_sizes(folder, read_manifest(folder))


def write_durably(file: Path, content: Mapping[str, Any]) -> None:
    """Write `content` as JSON and flush it to the disk."""
    with open(file, "w", encoding="utf-8") as stream:
        stream.write(json.dumps(content, indent=1, allow_nan=False) + "\n")
        stream.flush()
        os.fsync(stream.fileno())


def flush(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest in `folder`.

    Raises:
        DamagedError: there is none, or it is not one.
    """
    file = folder / MANIFEST_FILE
    try:
        size = _regular_size(file)
        if size > _MAX_BYTES:
            raise DamagedError(f"{MANIFEST_FILE} has {size} bytes, and none has more than {_MAX_BYTES}")
        return parse_manifest(file.read_bytes())
    except FileNotFoundError:
        raise DamagedError(f"it has no {MANIFEST_FILE}") from None
    except OSError as error:
        raise DamagedError(f"{MANIFEST_FILE} cannot be read: {error}") from None


def parse_manifest(content: bytes) -> Manifest:
    """Return the manifest that `content` spells.

    Raises:
        DamagedError: it is not one, or names a file outside the checkpoint's own folder.
    """
    try:
        raw = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError):  # a JSONDecodeError is a ValueError, and so is text that is not UTF-8
        raise DamagedError(f"{MANIFEST_FILE} is not JSON") from None
    if not isinstance(raw, dict):
        raise DamagedError(f"{MANIFEST_FILE} is not a JSON object")
    if raw.get("format") != MANIFEST_FORMAT:
        raise DamagedError(f"{MANIFEST_FILE} has format {raw.get('format')!r:.40}, and {MANIFEST_FORMAT} is known")
    loss = raw.get("val_loss")
    if loss is not None and not (_is_number(loss) and math.isfinite(loss)):
        raise DamagedError(f"{MANIFEST_FILE}: val_loss is not a number")
    for key in ("step", "consumed_samples"):
        if not _is_count(raw.get(key)):
            raise DamagedError(f"{MANIFEST_FILE}: {key} is not a number of {key.rpartition('_')[2]}s")
    files = {name: _parse_entry(name, entry) for name, entry in _parse_object(raw, "files").items()}
    missing = [name for name in REQUIRED_FILES if name not in files]
    if missing:
        raise DamagedError(f"{MANIFEST_FILE} lists no {', '.join(missing)}")
    layout, versions = _parse_object(raw, "layout"), _parse_object(raw, "versions")
    if not all(_is_count(size) for size in layout.values()):
        raise DamagedError(f"{MANIFEST_FILE}: layout holds something else than numbers of ranks")
    if not all(isinstance(version, str) for version in versions.values()):
        raise DamagedError(f"{MANIFEST_FILE}: versions holds something else than text")
    return Manifest(
        step=raw["step"],
        consumed_samples=raw["consumed_samples"],
        val_loss=None if loss is None else float(loss),
        layout=layout,
        versions=versions,
        files=files,
    )


def check_sizes(folder: Path, manifest: Manifest) -> None:
    """Check that every file is there, is no link, and has its size.

    Raises:
        DamagedError: naming the first that is not as it should be.
    """
    for name, entry in manifest.files.items():
        try:
            size = _regular_size(folder / name)
        except FileNotFoundError:
            raise DamagedError(f"{name} is missing") from None
        except OSError as error:
            raise DamagedError(f"{name} cannot be read: {error}") from None
        if size != entry.bytes:
            raise DamagedError(f"{name} has {size} bytes, and {entry.bytes} were written")


def find_altered(folder: Path, manifest: Manifest, names: Collection[str]) -> list[str]:
    """Return what is wrong with the files `names` of a checkpoint, reading each to its end."""
    wrong = []
    for name in names:
        try:
            found = describe_file(folder / name)
        except OSError as error:
            wrong.append(f"{name} cannot be read: {error}")
            continue
        if found != manifest.files[name]:
            wrong.append(f"{name} is not the file that was written: its SHA-256 or size differs")
    return wrong


def share_of(manifest: Manifest, rank: int, num_ranks: int) -> list[str]:
    """Return the files that `rank` should check: all ranks together check all, with about as many bytes each."""
    shares: list[tuple[int, list[str]]] = [(0, []) for _ in range(num_ranks)]
    for name in sorted(manifest.files, key=lambda name: (-manifest.files[name].bytes, name)):
        least = min(range(num_ranks), key=lambda index: shares[index][0])
        shares[least] = (shares[least][0] + manifest.files[name].bytes, [*shares[least][1], name])
    return shares[rank][1]


def _regular_size(file: Path) -> int:
    status = os.lstat(file)
    if not stat.S_ISREG(status.st_mode):
        raise OSError("it is a link, a folder or a device, and must be a file")
    return status.st_size


def _parse_object(raw: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = raw.get(key)
    if not isinstance(value, dict):
        raise DamagedError(f"{MANIFEST_FILE}: {key} is not a JSON object")
    return value


def _parse_entry(name: str, entry: Any) -> FileEntry:
    # A checkpoint is one flat folder. So no name can lead out of it.
    if name in ("", ".", "..", MANIFEST_FILE) or not name.isprintable() or re.search(r"[/\\]", name):
        raise DamagedError(f"{MANIFEST_FILE} lists {name!r:.80}, which is not the name of a file in its folder")
    if (
        not isinstance(entry, dict)
        or entry.keys() != {"bytes", "sha256"}
        or not _is_count(entry["bytes"])
        or not isinstance(entry["sha256"], str)
        or re.fullmatch("[0-9a-f]{64}", entry["sha256"]) is None
    ):
        raise DamagedError(f"{MANIFEST_FILE} does not give size and SHA-256 of {name!r:.80}")
    return FileEntry(entry["bytes"], entry["sha256"])


def _is_count(value: Any) -> bool:
    return _is_number(value) and isinstance(value, int) and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
