# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Complete or not at all: whatever goes wrong, old outputs stay, no new ones appear, no process is left."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nemo_sr.data import encoding, staging
from nemo_sr.data.parallel import map_ordered
from nemo_sr.data.preprocess import main
from nemo_sr.data.staging import Staging

ROOT = Path(__file__).parents[2]
NAMES = ["a", "b.bin", "b.idx"]


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def fill(area, text):
    for name in NAMES:
        (area.path / name).write_text(text + name)


def publish(folder, text):
    with Staging(folder, NAMES) as area:
        fill(area, text)
        area.publish()


def test_outputs_appear_together(tmp_path):
    folder = tmp_path / "new" / "deep"
    with Staging(folder, NAMES) as area:
        fill(area, "1")
        assert [path.name for path in folder.iterdir()] == [area.path.name]
        area.publish()
    assert contents(folder) == {name: ("1" + name).encode() for name in NAMES}


def test_nothing_is_left_of_a_failure_in_a_new_folder(tmp_path):
    with pytest.raises(FileNotFoundError), Staging(tmp_path / "new" / "deep", NAMES) as area:
        area.publish()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fails_at", range(6))
def test_failure_while_publishing_puts_the_old_outputs_back(tmp_path, monkeypatch, fails_at):
    publish(tmp_path, "old")
    before = contents(tmp_path)
    replace, calls = os.replace, []

    def fail_once(source, target):
        calls.append((source, target))
        if len(calls) == fails_at + 1:
            raise OSError(5, "injected")
        replace(source, target)

    monkeypatch.setattr(staging.os, "replace", fail_once)
    with pytest.raises(OSError, match="injected"):
        publish(tmp_path, "new")
    assert contents(tmp_path) == before


def test_index_goes_first_and_comes_last(tmp_path, monkeypatch):
    publish(tmp_path, "old")
    replace, moved = os.replace, []

    def record(source, target):
        moved.append(Path(target).relative_to(tmp_path).as_posix())
        replace(source, target)

    monkeypatch.setattr(staging.os, "replace", record)
    publish(tmp_path, "new")
    assert [name for name in moved if "previous" in name] == [f"{staging._FOLDER}/previous/{n}" for n in NAMES[::-1]]
    assert moved[3:] == NAMES


def test_two_runs_cannot_write_into_one_folder(tmp_path):
    with Staging(tmp_path, NAMES) as first:
        fill(first, "1")
        with pytest.raises(RuntimeError, match="one run at a time"):
            publish(tmp_path, "2")
        first.publish()
    assert contents(tmp_path)["a"] == b"1a"


@pytest.mark.parametrize("workers", [1, 2])
def test_failure_midway_keeps_old_outputs_and_what_is_finished(write_dump, tmp_path, monkeypatch, capsys, workers):
    out = tmp_path / "out"
    arguments = ["--output", str(out / "x"), "--train-tokenizer", "258", "--workers", str(workers)]
    assert main(["--input", str(write_dump([("A", "abc")])), *arguments]) == 0
    before = contents(out)

    def disk_full(path, lengths, dtype):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(encoding, "write_index", disk_full)
        assert main(["--input", str(write_dump([("A", "other")])), *arguments]) == 1
    assert "No space left" in capsys.readouterr().err
    assert (out / staging._FOLDER / "train_data.jsonl").exists()
    assert {name: (out / name).read_bytes() for name in before} == before
    assert main(["--input", str(write_dump([("A", "other")])), *arguments]) == 0
    assert not (out / staging._FOLDER).exists()
    assert b"other" in (out / "train_data.jsonl").read_bytes()


def _double(value):
    if value == 13:
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * value


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_map_keeps_the_order_and_draws_few_items_ahead(workers):
    drawn = []

    def items():
        for value in range(100, 160):
            drawn.append(value)
            yield value

    for number, result in enumerate(map_ordered(_double, items(), workers=workers)):
        assert result == 2 * (100 + number)
        assert len(drawn) - number <= 3 * workers + 1
    assert number == 59


def test_killed_worker_is_reported(recwarn):
    with pytest.raises(RuntimeError, match="one died"):
        list(map_ordered(_double, range(20), workers=2))


def children(pid):
    """List the children of a process, whichever of its threads made them."""
    return {
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    }


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _heed_sigint():
    # A shell makes what it starts in the background ignore it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.01)
    return result


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_ended_run_leaves_no_outputs_and_no_workers(sample_dump, tmp_path, number):
    out = tmp_path / "out"
    out.mkdir()
    (out / "x_text_document.idx").write_bytes(b"old")
    command = [sys.executable, str(ROOT / "scripts" / "preprocess_wikipedia.py"), "--input", str(sample_dump)]
    command += ["--output", str(out / "x"), "--train-tokenizer", "300", "--workers", "2"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=environment,
        preexec_fn=_heed_sigint,
    ) as run:
        try:
            workers = wait_until(lambda: len(found := children(run.pid)) == 2 and found)
            time.sleep(0.3)  # into the work
            run.send_signal(number)
            errors = run.communicate(timeout=60)[1].decode()
        finally:
            run.kill()
    assert run.returncode == {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGKILL: -9}[number]
    assert "Traceback" not in errors
    wait_until(lambda: not any(map(is_running, workers)))
    assert (out / "x_text_document.idx").read_bytes() == b"old"
    assert sorted(path.name for path in out.iterdir()) == [staging._FOLDER, "x_text_document.idx"]


STOPPED_AT_THE_START = """
import signal, sys
from concurrent.futures import ProcessPoolExecutor
from nemo_sr.data.parallel import map_ordered
launch = ProcessPoolExecutor._launch_processes

def launch_and_stop(self):
    launch(self)
    raise SystemExit(143)  # as the handler of a signal does that comes before the pool's own thread has started

ProcessPoolExecutor._launch_processes = launch_and_stop
list(map_ordered(len, ["a"], workers=2))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only where workers are forked at once")
def test_a_signal_while_workers_start_ends_the_run():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    run = subprocess.run([sys.executable, "-c", STOPPED_AT_THE_START], env=environment, timeout=60, check=False)
    assert run.returncode == 143
