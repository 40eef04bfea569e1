# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Looking at a run's checkpoints from outside: what there is, whether it is whole, what it holds. Imports no NeMo."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nemo_sr.training.manifest import SHARD_SUFFIX, find_altered
from nemo_sr.training.run_folder import Checkpoint, examine, find_checkpoints, megabytes

_DESCRIPTION = """\
Look at the checkpoints of a run. Nothing is changed, and nothing in the files is run.

  list    one line for each checkpoint: step, validation loss, size, state
  verify  read every file to its end and compare its SHA-256 with the manifest
  show    layout, versions, and every tensor with its shape, type and bytes

PATH is a run (the folder with checkpoints/ in it), its checkpoints/, or one checkpoint; show takes the newest. list and
show compare sizes and the checksums of small files, verify reads everything. Exit status: 0 if all is well, 1 if a
checkpoint is damaged, 2 if there is none at PATH. A save that was interrupted (partial_...) is no damaged checkpoint.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="inspect_checkpoint.py", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["list", "verify", "show"])
    parser.add_argument("path", type=Path, metavar="PATH")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # end quietly under head
    found = _find(args.path)
    if not found:
        print(  # noqa: T201
            f"error: PATH must be a run, its checkpoints/ or a checkpoint; {args.path} holds none. Give another path.",
            file=sys.stderr,
        )
        return 2
    if args.command == "verify":
        found = [_verified(checkpoint) for checkpoint in found]
    if args.command == "show":
        found = [found[-1]]
    reports = [describe(checkpoint) for checkpoint in found]
    if args.command == "show" and found[0].state == "complete":
        try:
            reports[0].update(describe_contents(found[0]))
        except ValueError as error:
            reports[0].update(state="damaged", reason=str(error))
    if args.json:
        print(json.dumps(reports, indent=1))  # noqa: T201
    else:
        print("\n".join(_show(reports[0]) if args.command == "show" else _table(reports)))  # noqa: T201
    return int(any(report["state"] == "damaged" for report in reports))


def describe(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return what can be said about a checkpoint without reading its shards."""
    manifest = checkpoint.manifest
    return {
        "path": str(checkpoint.path),
        "step": checkpoint.step,
        "state": checkpoint.state,
        "reason": checkpoint.reason,
        "bytes": _bytes_in(checkpoint.path),
        "val_loss": manifest.val_loss if manifest else None,
        "consumed_samples": manifest.consumed_samples if manifest else None,
        "layout": dict(manifest.layout) if manifest else {},
        "versions": dict(manifest.versions) if manifest else {},
    }


def describe_contents(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the tensors of a complete checkpoint, the number of parameters, and the bytes on disk for each.

    Raises:
        ValueError: its plan is not one.
    """
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    from nemo_sr.megatron.reading import read_plan

    assert checkpoint.manifest is not None
    plan = read_plan(checkpoint.path, checkpoint.manifest.files)
    tensors, num_params = [], 0
    for name, entry in plan.state_dict_metadata.items():
        if not isinstance(entry, TensorStorageMetadata):
            continue
        numel, dtype = entry.size.numel(), entry.properties.dtype
        tensors.append(
            {
                "name": name,
                "shape": list(entry.size),
                "dtype": str(dtype).removeprefix("torch."),
                "bytes": numel * dtype.itemsize,
            }
        )
        if not name.startswith("optimizer."):
            num_params += numel
    on_disk = sum(entry.bytes for entry in checkpoint.manifest.files.values())
    return {
        "parameters": num_params,
        "bytes_per_parameter": on_disk / num_params if num_params else None,
        "tensors": tensors,
    }


def _find(path: Path) -> list[Checkpoint]:
    path = Path(os.path.abspath(path))
    for folder in (path / "checkpoints", path):
        found = find_checkpoints(folder)
        if found:
            return found
    is_one = any((path / name).exists() for name in ("manifest.json", "run_state.json", "common.pt"))
    return [examine(path)] if path.is_dir() and (is_one or "step_" in path.name) else []


def _verified(checkpoint: Checkpoint) -> Checkpoint:
    if checkpoint.state != "complete" or checkpoint.manifest is None:
        return checkpoint
    shards = [name for name in checkpoint.manifest.files if name.endswith(SHARD_SUFFIX)]
    altered = find_altered(checkpoint.path, checkpoint.manifest, shards)
    if not altered:
        return checkpoint
    return Checkpoint(checkpoint.path, checkpoint.step, "damaged", "; ".join(altered), checkpoint.manifest)


def _table(reports: list[dict[str, Any]]) -> list[str]:
    rated = [report for report in reports if report["state"] == "complete" and report["val_loss"] is not None]
    best = min(rated, key=lambda report: report["val_loss"], default=None)
    lines = [f"{'step':>9}  {'val_loss':>9}  {'size':>11}  state"]
    for report in reports:
        loss = "-" if report["val_loss"] is None else f"{report['val_loss']:.4f}"
        state = ": ".join(filter(None, [report["state"], report["reason"]])) + (" (best)" if report is best else "")
        lines.append(f"{report['step']:>9}  {loss:>9}  {megabytes(report['bytes']):>11}  {state}")
    return lines


def _show(report: dict[str, Any]) -> list[str]:
    loss = "not validated at this step" if report["val_loss"] is None else f"{report['val_loss']:.6f}"
    lines = [
        report["path"],
        f"  state             {': '.join(filter(None, [report['state'], report['reason']]))}",
        f"  step              {report['step']}, {report['consumed_samples']} samples",
        f"  validation loss   {loss}",
        f"  size              {megabytes(report['bytes'])}",
        f"  layout            {', '.join(f'{key}={size}' for key, size in report['layout'].items())}",
        f"  versions          {', '.join(f'{key} {version}' for key, version in report['versions'].items())}",
    ]
    if "tensors" in report:
        per_parameter = f"{report['bytes_per_parameter']:.2f}" if report["bytes_per_parameter"] else "-"
        lines.append(f"  parameters        {report['parameters']}, {per_parameter} bytes on disk for each")
        width = max((len(tensor["name"]) for tensor in report["tensors"]), default=0)
        for tensor in sorted(report["tensors"], key=lambda tensor: str(tensor["name"])):
            shape = "x".join(map(str, tensor["shape"]))
            lines.append(f"  {tensor['name']:{width}}  {shape:>16}  {tensor['dtype']:>9}  {tensor['bytes']:>14}")
    return lines


def _bytes_in(path: Path) -> int:
    files = path.iterdir() if path.is_dir() else []
    return sum(file.lstat().st_size for file in files)
