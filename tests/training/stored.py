# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""A checkpoint's folder with a true manifest over files that hold no tensors."""

import json

from nemo_sr.training.manifest import REQUIRED_FILES, STATE_FILE, Manifest, describe_file, write_manifest
from nemo_sr.training.run_folder import checkpoint_name

SHARDS = ("__0_0.distcp", "__1_0.distcp")


def store(folder, step, *, state=None, val_loss=None):
    """Write the checkpoint of `step` in `folder`; return where it is."""
    path = folder / checkpoint_name(step)
    path.mkdir(parents=True)
    for number, name in enumerate([*REQUIRED_FILES, *SHARDS]):
        (path / name).write_bytes(bytes([number, step % 256]) * 100)
    (path / STATE_FILE).write_text(json.dumps(state) if isinstance(state, dict) else state or "{}")
    files = {file.name: describe_file(file) for file in path.iterdir()}
    write_manifest(path, Manifest(step, step * 16, val_loss, {"ranks": 2}, {"torch": "2.13.0"}, files))
    return path
