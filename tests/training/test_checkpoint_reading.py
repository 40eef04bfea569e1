# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""A checkpoint's plan (.metadata, a pickle) read as data, and the command line that looks at checkpoints."""

import json
import pickle
import subprocess
import sys

import pytest
import torch
import torch.distributed.checkpoint as dcp
from stored import SHARDS, store
from toy import ROOT, environment

from nemo_sr.megatron.reading import PLAN_FILE, UnsafeError, read_plan
from nemo_sr.training import inspection
from nemo_sr.training.manifest import describe_file, read_manifest, write_manifest


class Evil:
    def __init__(self, function, *args):
        self.reduced = function, args

    def __reduce__(self):
        return self.reduced


@pytest.fixture
def plan(tmp_path):
    """Return a folder with a true plan of torch's, of two tensors and an object."""
    state = {"a": torch.zeros(3, 2, dtype=torch.bfloat16), "optimizer.b": torch.zeros(3, 2), "c": {"x": 1}}
    with pytest.warns(UserWarning, match="single process"):
        dcp.save(state, checkpoint_id=tmp_path, no_dist=True)
    return tmp_path


def rewrite(folder, change):
    file = folder / PLAN_FILE
    found = pickle.loads(file.read_bytes())
    file.write_bytes(pickle.dumps(change(found) or found))


def names(folder):
    return [path.name for path in folder.iterdir()]


def test_a_true_plan_is_read(plan):
    assert set(read_plan(plan, names(plan)).state_dict_metadata) == {"a", "optimizer.b", "c.x"}


@pytest.mark.parametrize(
    "make",
    [
        lambda mark: Evil(open, str(mark), "w"),
        lambda mark: [Evil(eval, f"open({str(mark)!r}, 'w')")],
        lambda mark: {"deep": (Evil(torch.load, str(mark)),)},
        lambda mark: Evil(getattr, "x", "upper"),
    ],
    ids=["open", "eval", "torch.load", "getattr"],
)
def test_a_plan_that_runs_code_is_refused(tmp_path, make):
    mark = tmp_path / "mark"
    (tmp_path / PLAN_FILE).write_bytes(pickle.dumps(make(mark)))
    with pytest.raises(UnsafeError, match=r"asks for .*, which no plan has"):
        read_plan(tmp_path, [])
    assert not mark.exists()


def _to(path):
    def change(found):
        for place in found.storage_data.values():
            place.relative_path = path

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_to("../other/__0_0.distcp"), "points to '../other"),
        (_to("/dev/zero"), "points to '/dev/zero'"),
        (_to(None), "points to None"),
        (lambda found: [found], "it holds a list"),
        (lambda found: setattr(found, "storage_data", None), "lists of tensors and places are missing"),
        (lambda found: found.state_dict_metadata.update(a=3), "'a' is neither a tensor nor bytes"),
        (
            lambda found: (
                [setattr(place, "transform_descriptors", ["zstd"]) for place in found.storage_data.values()] and None
            ),
            r"is transformed by \['zstd'\]",
        ),
    ],
)
def test_a_plan_that_leads_elsewhere_is_refused(plan, change, message):
    rewrite(plan, change)
    with pytest.raises(UnsafeError, match=message):
        read_plan(plan, names(plan))


@pytest.mark.parametrize("path", ["../x", "/dev/zero", "..", "", None, "sub/x", "link", "folder"])
def test_without_a_list_a_plan_may_read_plain_files_of_its_folder(plan, path):
    read_plan(plan)
    rewrite(plan, _to("missing"))
    read_plan(plan)  # what is not there is said with the rest of what does not fit
    (plan / "link").symlink_to("/dev/zero")
    (plan / "folder").mkdir()
    rewrite(plan, _to(path))
    with pytest.raises(UnsafeError, match="points to"):
        read_plan(plan)


@pytest.mark.parametrize("content", [b"", b"not a pickle", b"\x80\x04.", b"cos\nsystem\n(S'true'\ntR."])
def test_what_is_no_pickle_of_a_plan_is_refused(tmp_path, content):
    (tmp_path / PLAN_FILE).write_bytes(content)
    with pytest.raises(UnsafeError):
        read_plan(tmp_path, [])


@pytest.fixture
def run(tmp_path, plan):
    """A run with a damaged, an unfinished and two complete checkpoints, the newest of which holds tensors."""
    folder = tmp_path / "run" / "checkpoints"
    store(folder, 1, val_loss=2.5)
    (store(folder, 2, val_loss=2.0) / "common.pt").unlink()
    (folder / "partial_step_00000003").mkdir()
    newest = store(folder, 4, val_loss=2.25)
    (newest / PLAN_FILE).write_bytes((plan / PLAN_FILE).read_bytes())
    rewrite(newest, _to(SHARDS[0]))
    manifest = read_manifest(newest)
    write_manifest(
        newest, type(manifest)(**{**vars(manifest), "files": {n: describe_file(newest / n) for n in manifest.files}})
    )
    return tmp_path / "run"


def inspect(capsys, *argv):
    status = inspection.main(list(map(str, argv)))
    shown = capsys.readouterr()
    return status, shown.out, shown.err


def test_list_names_every_checkpoint_with_its_state(run, capsys):
    status, shown, _ = inspect(capsys, "list", run)
    assert status == 1
    lines = [line.split(maxsplit=4) for line in shown.splitlines()]
    assert [[line[0], line[1], *line[4:]] for line in lines[1:]] == [
        ["1", "2.5000", "complete"],
        ["2", "2.0000", "damaged: common.pt is missing"],
        ["3", "-", "partial: its save was interrupted, or is under way"],
        ["4", "2.2500", "complete (best)"],
    ]
    assert inspect(capsys, "list", run / "checkpoints")[1] == shown


def test_show_describes_the_newest(run, capsys):
    status, shown, _ = inspect(capsys, "show", run, "--json")
    assert status == 0
    (report,) = json.loads(shown)
    assert (report["step"], report["val_loss"], report["versions"]) == (4, 2.25, {"torch": "2.13.0"})
    assert report["parameters"] == 6
    assert report["tensors"] == [
        {"name": "a", "shape": [3, 2], "dtype": "bfloat16", "bytes": 12},
        {"name": "optimizer.b", "shape": [3, 2], "dtype": "float32", "bytes": 24},
    ]
    text = inspect(capsys, "show", run)[1]
    assert "3x2   bfloat16" in text
    assert "ranks=2" in text


def test_verify_reads_the_shards(run, capsys):
    newest = run / "checkpoints" / "step_00000004"
    assert inspect(capsys, "verify", newest)[0] == 0
    (newest / SHARDS[1]).write_bytes(b"x" * 200)
    assert inspect(capsys, "list", newest)[0] == 0  # the size is right
    status, shown, _ = inspect(capsys, "verify", newest)
    assert status == 1
    assert f"damaged: {SHARDS[1]} is not the file that was written" in shown


def test_show_of_a_plan_that_runs_code_says_so(run, capsys):
    newest = run / "checkpoints" / "step_00000004"
    (newest / PLAN_FILE).write_bytes(pickle.dumps(Evil(open, str(run / "mark"), "w")))
    manifest = read_manifest(newest)
    manifest.files[PLAN_FILE] = describe_file(newest / PLAN_FILE)
    write_manifest(newest, manifest)
    status, shown, _ = inspect(capsys, "show", newest)
    assert status == 1
    assert "damaged" in shown
    assert "which no plan has" in shown
    assert not (run / "mark").exists()


def test_the_script_imports_no_nemo_and_says_what_is_wrong(tmp_path):
    script = ROOT / "scripts/inspect_checkpoint.py"
    code = f"import sys, runpy; sys.argv = ['x', 'list', {str(tmp_path)!r}]\ntry: runpy.run_path({str(script)!r}, "
    code += "run_name='__main__')\nfinally: print([name for name in ('nemo', 'megatron.core', 'hydra', 'lightning') "
    code += "if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stdout == "[]\n"
    assert f"error: PATH must be a run, its checkpoints/ or a checkpoint; {tmp_path} holds none." in done.stderr
