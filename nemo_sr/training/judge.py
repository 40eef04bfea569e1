# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Which rank of a run does not go on, judged by what all say of themselves; see :mod:`nemo_sr.training.heartbeat`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

SILENCE = "its process has died or was stopped, or its node is lost"


@dataclass(frozen=True)
class Beat:
    """What a rank says of itself."""

    sign: int
    """Counts up as long as the process runs."""

    progress: int
    """Counts up as long as the training goes on."""

    step: int
    """Optimizer steps that were done at the last progress."""

    busy: str
    """What it does that may take long, such as saving; "" while every progress is due within the timeout."""

    waits: bool
    """Whether its main thread waits for other ranks."""

    where: str
    """The line its main thread is at."""

    host: str

    collectives: dict[str, int] = field(default_factory=dict)
    """Collectives it has entered, by group of ranks."""


class Judge:
    """Tells from what ranks say of themselves which one does not go on.

    Args:
        timeout: Seconds that a rank may take from one sign, or from one progress, to the next.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._beats: dict[int, Beat] = {}
        self._signs: dict[int, float] = {}
        self._progress: dict[int, float] = {}
        self._now = -1.0

    def judge(self, beats: Sequence[Beat], now: float) -> str | None:
        """Return who must be given up and why, or None.

        Args:
            beats: The newest beat of every rank.
            now: Seconds, by a clock that does not go back.
        """
        if now - self._now > self._timeout / 2:
            # This process itself was stopped for a while, as a batch system may do to a whole job.
            self._beats = {}
        self._now = now
        for rank, beat in enumerate(beats):
            before = self._beats.get(rank)
            if before is None or beat.sign != before.sign:
                self._signs[rank] = now
            if before is None or beat.busy or beat.progress != before.progress:
                self._progress[rank] = now
            self._beats[rank] = beat
        silent = [rank for rank, since in self._signs.items() if now - since > self._timeout]
        if silent:
            return f"{_enumerate(silent, beats)}: not heard of for {self._timeout:g} s ({SILENCE})"
        stuck = [rank for rank, since in self._progress.items() if now - since > self._timeout]
        if not stuck:
            return None
        ahead = _find_ahead(beats)
        suspects = [rank for rank, beat in enumerate(beats) if rank not in ahead and not beat.waits]
        culprits = [rank for rank in stuck if rank in suspects]
        if not culprits:
            # They wait. The one that they wait for may have been seen to go on a little later than they.
            if len(stuck) < len(beats) and now - min(self._progress.values()) <= 2 * self._timeout:
                return None
            culprits = suspects or [rank for rank in stuck if rank not in ahead] or stuck
        least = min(beats[rank].progress for rank in culprits)
        culprits = [rank for rank in culprits if beats[rank].progress == least]
        return f"{_enumerate(culprits, beats)}: no progress for {self._timeout:g} s"


def _find_ahead(beats: Sequence[Beat]) -> set[int]:
    """Return the ranks that have entered a collective which another rank of the group has not entered."""
    fewest: dict[str, int] = {}
    for beat in beats:
        for group, count in beat.collectives.items():
            fewest[group] = min(count, fewest.get(group, count))
    return {
        rank
        for rank, beat in enumerate(beats)
        if any(count > fewest[group] for group, count in beat.collectives.items())
    }


def _enumerate(ranks: list[int], beats: Sequence[Beat]) -> str:
    shown = [f"rank {rank} on {beats[rank].host}, step {beats[rank].step}, at {beats[rank].where}" for rank in ranks]
    return "; ".join(shown[:4]) + (f" and {len(shown) - 4} more ranks" if len(shown) > 4 else "")
