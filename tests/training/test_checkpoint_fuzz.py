# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Random bytes, random JSON and random damage in what is read from the disk: our own errors, never another."""

import json
import pickle
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stored import SHARDS, store

from nemo_sr.data.indexed import check_prefix
from nemo_sr.megatron.reading import PLAN_FILE, UnsafeError, read_plan
from nemo_sr.training.config import ConfigError
from nemo_sr.training.manifest import (
    MANIFEST_FILE,
    REQUIRED_FILES,
    STATE_FILE,
    DamagedError,
    find_altered,
    parse_manifest,
)
from nemo_sr.training.resume import read_state
from nemo_sr.training.run_folder import examine

pytestmark = pytest.mark.slow
fuzzed = settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)
damages = st.tuples(st.sampled_from(["cut", "flip", "insert", "zero"]), st.integers(0, 1 << 16), st.integers(1, 255))


def damaged(content, kind, at, value):
    at %= max(len(content), 1)
    if kind == "cut":
        return content[:at]
    if kind == "insert":
        return content[:at] + bytes([value]) + content[at:]
    if kind == "zero":
        return content[:at] + bytes(min(value, len(content) - at)) + content[at + value :]
    return content[:at] + bytes([content[at] ^ value]) + content[at + 1 :]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return store(tmp_path_factory.mktemp("fuzz"), 3, val_loss=1.5)


@fuzzed
@given(content=st.binary(max_size=300) | json_values.map(lambda value: json.dumps(value).encode()))
def test_anything_as_a_manifest(content):
    with pytest.raises(DamagedError):
        parse_manifest(content)


@fuzzed
@given(data=st.data())
def test_any_value_in_a_manifest(checkpoint, data):
    manifest = json.loads((checkpoint / MANIFEST_FILE).read_text())
    key = data.draw(st.sampled_from(sorted(manifest)))
    if key == "files" and data.draw(st.booleans()):
        manifest["files"][data.draw(st.sampled_from(REQUIRED_FILES) | st.text())] = data.draw(json_values)
    else:
        manifest[key] = data.draw(json_values)
    try:
        parsed = parse_manifest(json.dumps(manifest).encode())
    except DamagedError:
        return
    assert all("/" not in name and name not in ("", ".", "..") for name in parsed.files)


@fuzzed
@given(name=st.sampled_from([*REQUIRED_FILES, *SHARDS, MANIFEST_FILE]), damage=damages)
def test_any_damage_to_any_file_is_found(checkpoint, name, damage):
    file = checkpoint / name
    before = file.read_bytes()
    after = damaged(before, *damage)
    if after == before:
        return
    file.write_bytes(after)
    try:
        found = examine(checkpoint)
        altered = find_altered(checkpoint, found.manifest, found.manifest.files) if found.manifest else []
        changes_nothing = name == MANIFEST_FILE and _means_the_same(before, after)
        assert found.state == "damaged" or altered or changes_nothing
    finally:
        file.write_bytes(before)
    assert examine(checkpoint).state == "complete"


def _means_the_same(before, after):
    # A manifest has no checksum of its own: a digit of the loss or of a version may change unseen.
    try:
        one, other = json.loads(before), json.loads(after)
    except ValueError:
        return False
    return all(one[key] == other.get(key) for key in ("format", "step", "files"))


@fuzzed
@given(content=st.binary(max_size=200) | json_values.map(lambda value: json.dumps(value).encode()))
def test_anything_as_a_run_state(tmp_path_factory, content):
    folder = tmp_path_factory.getbasetemp() / "state"
    folder.mkdir(exist_ok=True)
    (folder / STATE_FILE).write_bytes(content)
    with pytest.raises(ConfigError):
        read_state(folder)


@fuzzed
@given(
    content=st.binary(max_size=300)
    | st.builds(
        lambda asked, rest: b"c" + asked + b"\n" + rest,
        st.sampled_from([b"builtins\neval", b"os\nsystem", b"torch\nSize", b"torch\nload"]),
        st.binary(max_size=20),
    )
    | st.builds(lambda value, damage: damaged(pickle.dumps(value), *damage), json_values, damages)
)
def test_anything_as_a_plan(tmp_path_factory, content):
    folder = tmp_path_factory.getbasetemp() / "plan"
    folder.mkdir(exist_ok=True)
    (folder / PLAN_FILE).write_bytes(content)
    with pytest.raises(UnsafeError):
        read_plan(folder, [])


@fuzzed
@given(
    numbers=st.tuples(st.integers(0, 3), st.integers(0, 255), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)),
    rest=st.binary(max_size=200),
    size=st.integers(0, 100),
    damage=st.none() | damages,
)
def test_anything_as_an_index(tmp_path_factory, numbers, rest, size, damage):
    prefix = tmp_path_factory.getbasetemp() / "data"
    content = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", *numbers) + rest
    prefix.with_suffix(".idx").write_bytes(damaged(content, *damage) if damage else content)
    prefix.with_suffix(".bin").write_bytes(bytes(size))
    _check(prefix)


@fuzzed
@given(which=st.sampled_from([".idx", ".bin"]), damage=damages)
def test_a_true_index_with_damage(toy_prefix, tmp_path_factory, which, damage):
    copy = tmp_path_factory.getbasetemp() / "copy"
    for ending in (".idx", ".bin"):
        content = toy_prefix.with_suffix(ending).read_bytes()
        copy.with_suffix(ending).write_bytes(damaged(content, *damage) if ending == which else content)
    _check(copy)


def _check(prefix):
    try:
        check_prefix(prefix)
    except ValueError as error:
        if str(prefix) not in str(error):  # not one of ours
            raise
