# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Manifests, and the folder of a run's checkpoints: what counts as complete, what is kept, what is refused."""

import json
import os
import shutil

import pytest
from stored import SHARDS, store

from nemo_sr.training.manifest import (
    MANIFEST_FILE,
    REQUIRED_FILES,
    DamagedError,
    find_altered,
    parse_manifest,
    read_manifest,
    share_of,
    write_manifest,
)
from nemo_sr.training.run_folder import choose_kept, delete_others, examine, find_checkpoints, publish


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def _cut(file):
    file.write_bytes(file.read_bytes()[:-1])


def _flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x10
    file.write_bytes(content)


def _link(file):
    elsewhere = file.parent.parent / "elsewhere"
    file.rename(elsewhere)
    file.symlink_to(elsewhere)


def _fifo(file):
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize("name", [*REQUIRED_FILES, *SHARDS])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (os.unlink, "is missing"),
        (_cut, "were written"),
        (_flip, "is not the file that was written"),
        (_link, "it is a link"),
        (_fifo, "it is a link, a folder or a device"),
    ],
)
def test_damage_to_any_file_is_found(tmp_path, name, damage, message):
    path = store(tmp_path, 7)
    assert examine(path).state == "complete"
    damage(path / name)
    found = examine(path)
    if damage is _flip and name in SHARDS:
        assert found.state == "complete"  # until its shards are read
        assert find_altered(path, found.manifest, SHARDS) == [
            f"{name} is not the file that was written: its SHA-256 or size differs"
        ]
        return
    assert found.state == "damaged"
    assert name in found.reason
    assert message in found.reason


def test_files_of_another_checkpoint_are_found(tmp_path):
    one, other = store(tmp_path, 1), store(tmp_path, 2)
    shutil.copy(other / SHARDS[0], one / SHARDS[0])
    assert len(find_altered(one, read_manifest(one), SHARDS)) == 1
    renamed = other.rename(tmp_path / "step_00000003")
    assert examine(renamed).reason == "its manifest is that of step 2"


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "a/b", "..", ".", "", "a\\b", "a\0b", "a\nb", "\ud800", MANIFEST_FILE]
)
def test_a_manifest_that_leads_out_of_its_folder_is_refused(tmp_path, name):
    manifest = json.loads((store(tmp_path, 1) / MANIFEST_FILE).read_text())
    manifest["files"][name] = manifest["files"]["common.pt"]
    with pytest.raises(DamagedError, match="is not the name of a file in its folder"):
        parse_manifest(json.dumps(manifest).encode())


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("format", 2, "has format 2, and 1 is known"),
        ("step", -1, "step is not a number"),
        ("step", True, "step is not a number"),
        ("consumed_samples", 1.5, "consumed_samples is not a number of samples"),
        ("val_loss", "low", "val_loss is not a number"),
        ("val_loss", float("nan"), "val_loss is not a number"),
        ("layout", {"ranks": "2"}, "layout holds something else"),
        ("layout", None, "layout is not a JSON object"),
        ("versions", {"torch": 2}, "versions holds something else"),
        ("files", [], "files is not a JSON object"),
        ("files", {}, "lists no run_state.json, .metadata, common.pt, metadata.json"),
        ("files", {"x": {"bytes": 1}}, "does not give size and SHA-256"),
        ("files", {"x": {"bytes": 1, "sha256": "0" * 63 + "G"}}, "does not give size and SHA-256"),
    ],
)
def test_a_manifest_of_another_form_is_refused(tmp_path, key, value, message):
    manifest = json.loads((store(tmp_path, 1) / MANIFEST_FILE).read_text())
    manifest[key] = value
    with pytest.raises(DamagedError, match=message):
        parse_manifest(json.dumps(manifest).encode())


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"[" * 100_000, b'{"format": 1', b"9" * 10_000])
def test_what_is_not_a_json_object_is_refused(content):
    with pytest.raises(DamagedError):
        parse_manifest(content)


def test_a_manifest_is_not_written_over_files_that_differ(tmp_path):
    path = store(tmp_path, 1)
    manifest = read_manifest(path)
    (path / MANIFEST_FILE).unlink()
    _cut(path / SHARDS[1])
    with pytest.raises(DamagedError, match=r"__1_0\.distcp has 199 bytes, and 200 were written"):
        write_manifest(path, manifest)
    assert not (path / MANIFEST_FILE).exists()


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 10])
def test_all_ranks_together_check_every_file_once(tmp_path, num_ranks):
    manifest = read_manifest(store(tmp_path, 1))
    shares = [share_of(manifest, rank, num_ranks) for rank in range(num_ranks)]
    assert sorted(name for share in shares for name in share) == sorted(manifest.files)


def test_a_folder_is_listed_by_step_with_reasons(tmp_path):
    assert find_checkpoints(tmp_path / "nowhere") == []
    store(tmp_path, 30)
    store(tmp_path, 123_456_789)
    (tmp_path / "partial_step_00000004").mkdir()
    (tmp_path / "step_00000002").write_text("a file")
    (tmp_path / "step_00000001").symlink_to(store(tmp_path / "elsewhere", 1))
    (tmp_path / "deleted_step_00000003").mkdir()
    (tmp_path / "step_9").mkdir()
    found = [(one.step, one.state, one.reason) for one in find_checkpoints(tmp_path)]
    assert found == [
        (1, "damaged", "it must be a folder, and no link"),
        (2, "damaged", "it must be a folder, and no link"),
        (4, "partial", "its save was interrupted, or is under way"),
        (30, "complete", ""),
        (123_456_789, "complete", ""),
    ]


LOSSES = {10: 3.0, 20: 1.0, 30: None, 40: 2.0, 50: 1.0, 60: None}


@pytest.mark.parametrize(
    ("newest", "best", "kept"),
    [
        (1, 0, [60]),
        (2, 1, [50, 60]),  # of two with one loss the newer
        (2, 2, [20, 50, 60]),
        (1, 3, [20, 40, 50, 60]),
        (1, -1, [10, 20, 40, 50, 60]),
        (-1, 0, [10, 20, 30, 40, 50, 60]),
        (9, 9, [10, 20, 30, 40, 50, 60]),
    ],
)
def test_the_newest_and_the_best_are_kept(tmp_path, newest, best, kept):
    for step, loss in LOSSES.items():
        store(tmp_path, step, val_loss=loss)
    damaged, partial = store(tmp_path, 70, val_loss=0.1), tmp_path / "partial_step_00000080"
    (damaged / MANIFEST_FILE).unlink()
    partial.mkdir()
    chosen = choose_kept(find_checkpoints(tmp_path), newest=newest, best=best)
    assert sorted(path.name for path in chosen) == [f"step_{step:08d}" for step in kept]
    leftover = tmp_path / "deleted_step_00000005"
    (leftover / "inner").mkdir(parents=True)
    delete_others(tmp_path, newest=newest, best=best)
    assert names(tmp_path) == [partial.name, *(f"step_{step:08d}" for step in kept), damaged.name]


def test_a_checkpoint_takes_the_place_of_a_damaged_one(tmp_path):
    old = store(tmp_path, 5)
    (old / MANIFEST_FILE).unlink()
    (old / "old").touch()
    store(tmp_path / "new", 5).rename(tmp_path / "partial_step_00000005")
    (tmp_path / "new").rmdir()
    assert publish(tmp_path, 5) == old
    assert names(tmp_path) == [old.name]
    assert examine(old).state == "complete"
    assert not (old / "old").exists()
