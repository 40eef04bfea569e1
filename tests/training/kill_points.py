# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Kills runs at random points and resumes them; they must end with what a run has that was not interrupted.

Usage: python tests/training/kill_points.py [--points N] [--seed N]. It prints a line for every kill.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import signal
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from toy import find_ranks, overrides, read_tensors, start_pretrain, wait_for, write_toy_data

from nemo_sr.training.run_folder import examine, find_checkpoints

STEPS_PER_POINT = 12
SAVED_EVERY = 4
LAYOUTS = {
    "DP2": [],
    "TP2": ["model.tensor_model_parallel_size=2"],
    "PP2": ["model.pipeline_model_parallel_size=2"],
}
KILLS = ("SIGTERM", "SIGUSR1", "kill -9 of one rank", "kill -9 of all", "kill -9 of all in a save")
HEADER = "| layout | save | kill | at step | exit status | newest checkpoint | resumed | same losses |"


@dataclass
class Point:
    """A kill, and what came of it."""

    layout: str
    save: str
    kill: str
    at: int
    status: int = 0
    newest: str = "none"
    resumed: str = "none"
    same: bool = False

    def row(self) -> str:
        same = "yes" if self.same else "NO"
        cells = (self.layout, self.save, self.kill, self.at, self.status, self.newest, self.resumed, same)
        return f"| {' | '.join(map(str, cells))} |"


class Run:
    """A started run and the lines that it has printed."""

    def __init__(self, words: list[str]) -> None:
        self.process = start_pretrain(*words)
        self.lines: list[str] = []
        self.ranks: dict[int, psutil.Process] = {}
        self._reader = threading.Thread(target=lambda: self.lines.extend(iter(self.process.stdout.readline, "")))
        self._reader.start()

    @property
    def over(self) -> bool:
        return self.process.poll() is not None

    def losses(self) -> dict[int, str]:
        """Return what was printed of each step: loss, learning rate and gradient norm."""
        found = {}
        for line in self.lines:
            if match := re.match(r"step (\d+)/\d+  (loss \S+) .*(lr \S+  grad_norm \S+)", line):
                found[int(match[1])] = f"{match[2]} {match[3]}"
        return found

    def wait(self) -> int:
        status = self.process.wait(300)
        self._reader.join(30)
        return status

    def kill_all(self) -> None:
        self.process.kill()
        for rank in self.ranks.values():
            # A rank leads its process group, which outlives it where children do.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(rank.pid, signal.SIGKILL)


def kill(run: Run, kind: str, at: int, partial: Path, chance: random.Random) -> None:
    """Kill `run` once it has done `at` steps, or in the save that follows."""
    wait_for(lambda: max(run.losses(), default=0) >= at or run.over)
    run.ranks = find_ranks(run.process)
    if kind == "kill -9 of all in a save":
        wait_for(lambda: any(partial.glob("partial_*")) or run.over)
    time.sleep(chance.uniform(0.0, 0.3))
    if kind == "kill -9 of one rank":
        with contextlib.suppress(psutil.Error):
            run.ranks[chance.choice(sorted(run.ranks))].kill()
    elif kind.startswith("kill -9"):
        run.kill_all()
    else:
        run.process.send_signal(getattr(signal, kind))


def chain(layout: str, save: str, kills: list[str], prefix: Path, folder: Path, seed: int) -> list[Point]:
    """Kill one run again and again; return what came of each kill.

    Raises:
        AssertionError: a run did not end as it should, or the last one ended with other tensors than the
            uninterrupted one.
    """
    chance = random.Random(f"{seed} {layout} {save}")
    max_steps = STEPS_PER_POINT * (len(kills) + 1)

    def words(name: str) -> list[str]:
        return [
            *overrides(prefix, folder / name, max_steps=max_steps),
            *LAYOUTS[layout],
            "trainer.log_every_n_steps=1",
            "model.hidden_dropout=0.1",
            f"exp_manager.checkpoint_callback_params.async_save={save == 'async'}",
            f"exp_manager.checkpoint_callback_params.every_n_train_steps={SAVED_EVERY}",
        ]

    whole = Run(words("whole"))
    assert whole.wait() == 0, "".join(whole.lines)
    expected = whole.losses()
    assert sorted(expected) == list(range(1, max_steps + 1))
    checkpoints = folder / "killed" / "checkpoints"
    points: list[Point] = []
    for number in range(len(kills) + 1):
        run = Run(words("killed"))
        try:
            if number < len(kills):
                at = min(STEPS_PER_POINT * number + chance.randint(1, STEPS_PER_POINT), max_steps - 2)
                points.append(Point(layout, save, kills[number], at))
                kill(run, kills[number], at, checkpoints, chance)
                points[-1].status = run.wait()
            else:
                assert run.wait() == 0, "".join(run.lines)
        finally:
            run.kill_all()
        shown = "".join(run.lines)
        losses = run.losses()
        agrees = all(expected[step] == text for step, text in losses.items())
        if number:
            match = re.search(r"Resuming from \S+/(step_\d+)", shown)
            points[number - 1].resumed = match[1] if match else "none"
            points[number - 1].same = agrees and points[number - 1].resumed == points[number - 1].newest
            print(points[number - 1].row(), flush=True)
        if number < len(kills):
            stopped = kills[number].startswith("SIG")
            assert (points[-1].status == 0) == stopped, shown
            found = [checkpoint for checkpoint in find_checkpoints(checkpoints) if checkpoint.state != "partial"]
            assert all(checkpoint.state == "complete" for checkpoint in found), found
            points[-1].newest = found[-1].path.name if found else "none"
            if stopped:
                assert int(points[-1].newest.removeprefix("step_")) >= points[-1].at, shown
    name = f"step_{max_steps:08d}"
    last = [folder / run / "checkpoints" / name for run in ("killed", "whole")]
    assert all(examine(checkpoint).state == "complete" for checkpoint in last)
    ours, theirs = map(read_tensors, last)
    assert ours.keys() == theirs.keys()
    different = [key for key in ours if not torch.equal(as_bytes(ours[key]), as_bytes(theirs[key]))]
    assert not different, f"{layout} {save}: {different}"
    assert all(point.same for point in points), [point.row() for point in points]
    return points


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def run_points(num_points: int, seed: int, folder: Path) -> list[Point]:
    """Kill runs in every layout and both ways to save, `num_points` times in all."""
    chance = random.Random(seed)
    prefix = write_toy_data(folder)
    chains = [(layout, save) for save in ("sync", "async") for layout in LAYOUTS][: max(1, num_points)]
    shares = [num_points // len(chains) + (i < num_points % len(chains)) for i in range(len(chains))]
    kinds = [KILLS[i % len(KILLS)] for i in range(num_points)]
    chance.shuffle(kinds)
    print(HEADER + "\n|" + "---|" * 8, flush=True)
    points = []
    for (layout, save), share in zip(chains, shares, strict=True):
        mine, kinds = kinds[:share], kinds[share:]
        points += chain(layout, save, mine, prefix, folder / f"{layout}_{save}", seed)
    return points


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=30, help="kills in all (default: 30)")
    parser.add_argument("--seed", type=int, default=0, help="which points (default: 0)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        points = run_points(args.points, args.seed, Path(folder))
    print(f"{len(points)} kills; every run ended with the tensors of the uninterrupted one.")


if __name__ == "__main__":
    main()
