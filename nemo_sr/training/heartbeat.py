# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Heartbeats: a rank that dies or hangs ends the others in bounded time, and the message names it.

Every rank says at intervals that its process runs, how far its training has come, and where its main thread is. Rank 0
reads what all say and gives the verdict; the others read the verdict and watch rank 0. A run that waits in a collective
for a rank that will not come would otherwise wait for the timeout of the process group, half an hour, and then blame
whoever noticed first.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta
from typing import Any, NoReturn

import torch.distributed as dist
from lightning.pytorch.callbacks import Callback
from megatron.core import parallel_state

from nemo_sr.training.judge import SILENCE, Beat, Judge

# Code that does nothing but wait for other ranks.
_WAITING = ("torch.distributed", "megatron.core.distributed", "megatron.core.pipeline_parallel.p2p_communication")
_MAX_INTERVAL = 5.0
_VERDICT = "verdict"
_FAREWELL = "a connection is lost"


def _count_collectives() -> dict[str, int]:
    """Return how many collectives this rank has entered in each of its groups.

    Groups of pipeline stages are left out: sends and receives count there too, and stages differ in how many they have.
    """
    pipeline = parallel_state.get_pipeline_model_parallel_group(check_initialized=False)
    counts: dict[str, int] = {}
    for group in list(dist.distributed_c10d._world.pg_map):
        with contextlib.suppress(RuntimeError):  # a backend that does not count
            if group.size() > 1 and group is not pipeline:
                counts[str(group.group_name)] = group._get_sequence_number_for_group()  # type: ignore[attr-defined]
    return counts


class Watch:
    """Sends this rank's heartbeats and ends the process when the run cannot go on. Every rank has one.

    Args:
        store: Where the ranks meet. Rank 0 holds it.
        rank: This rank.
        world_size: Number of ranks.
        timeout: Seconds, see :class:`Judge`.
        speaks: Whether it prints what it learns of rank 0's loss.
    """

    def __init__(self, store: Any, rank: int, world_size: int, timeout: float, *, speaks: bool) -> None:
        self._store, self._rank, self._world_size, self._timeout = store, rank, world_size, timeout
        self._speaks = speaks
        self._judge = Judge(timeout)
        self._sign = self._progress = self._step = 0
        self._busy = "starting"
        self._interval = min(_MAX_INTERVAL, timeout / 8)
        self._stopping = threading.Event()
        self._exchanged = time.monotonic()
        self._main = threading.main_thread().ident
        if rank == 0:
            store.set(_VERDICT, "")
        self._send()

    def start(self) -> None:
        """Start watching; every rank must have made its watch."""
        self._exchanged = time.monotonic()
        # A call to a store whose process was stopped does not come back, so another thread watches the one that calls.
        for target in (self._exchange, self._supervise):
            threading.Thread(target=target, name=f"heartbeat{target.__name__}", daemon=True).start()

    def beat(self, step: int) -> None:
        """Say that the training goes on.

        Args:
            step: Optimizer steps that are done.
        """
        self._step, self._busy = step, ""
        self._progress += 1

    @contextlib.contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """Tell the others that no progress is due inside the ``with`` block."""
        before, self._busy = self._busy, what
        try:
            yield
        finally:
            self._progress += 1
            self._busy = before

    def find_lost(self) -> list[str]:
        """Return the ranks that give no sign any more, for a rank that has lost a connection. Takes some seconds.

        Those that have lost one too say so, and are not among them, whether they are still there or not.
        """
        self._busy = _FAREWELL
        try:
            self._send()
            before = self._read()
            self.wait()
            after = self._read()
        except Exception:  # the store is gone, and with it who holds it
            return ["rank 0"]
        return [
            f"rank {rank} on {beat.host}, step {beat.step}"
            for rank, beat in enumerate(after)
            if beat.sign == before[rank].sign and beat.busy != _FAREWELL
        ]

    def wait(self) -> None:
        """Wait until every rank that lives has given another sign."""
        time.sleep(self._interval + 2)

    def stop(self) -> None:
        """Stop watching."""
        self._stopping.set()

    def _exchange(self) -> None:
        while not self._stopping.wait(self._interval):
            try:
                verdict = self._exchange_once()
            except Exception:  # the store is gone: rank 0 has ended, or will not be heard of
                time.sleep(self._interval)
                continue
            self._exchanged = time.monotonic()
            if verdict and not self._stopping.is_set():
                self._end(verdict, speaks=self._rank == 0)

    def _exchange_once(self) -> str | None:
        self._send()
        if self._rank:
            return str(self._store.get(_VERDICT).decode())
        return self._judge.judge(self._read(), time.monotonic())

    def _read(self) -> list[Beat]:
        texts = self._store.multi_get([_key(rank) for rank in range(self._world_size)])
        return [Beat(**json.loads(text)) for text in texts]

    def _send(self) -> None:
        self._sign += 1
        self._store.set(_key(self._rank), json.dumps(asdict(self._describe())))

    def _supervise(self) -> None:
        before = time.monotonic()
        while not self._stopping.wait(self._interval):
            now = time.monotonic()
            if now - before > self._timeout / 2:  # this process itself was stopped for a while
                self._exchanged = now
            before = now
            if now - self._exchanged > self._timeout and not self._stopping.is_set():
                self._end(f"rank 0: not heard of for {self._timeout:g} s ({SILENCE})", speaks=self._speaks)

    def _describe(self) -> Beat:
        frame = sys._current_frames().get(self._main or 0)
        waits, where = False, "?"
        if frame is not None:
            waits = frame.f_globals.get("__name__", "").startswith(_WAITING)
            code = frame.f_code
            where = f"{os.path.basename(code.co_filename)}:{frame.f_lineno} ({code.co_name})"
        host = socket.gethostname()
        return Beat(self._sign, self._progress, self._step, self._busy, waits, where, host, _count_collectives())

    def _end(self, verdict: str, *, speaks: bool) -> NoReturn:
        if self._rank == 0:
            self._store.set(_VERDICT, verdict)
        if speaks:
            print(  # noqa: T201
                f"error: Every rank must go on within trainer.heartbeat_timeout; {verdict}. All ranks have been ended. "
                "The same command goes on from the newest checkpoint, if there is one. If nothing was wrong, raise "
                "trainer.heartbeat_timeout; 0 turns it off.",
                file=sys.stderr,
                flush=True,
            )
        frame = sys._current_frames().get(self._main or 0)
        if frame is not None and verdict.startswith(f"rank {self._rank} "):
            stack = "".join(traceback.format_stack(frame))
            print(f"rank {self._rank} was at:\n{stack}", file=sys.stderr, flush=True)  # noqa: T201
        for child in multiprocessing.active_children():  # Megatron-core's writers, which would outlive this process
            child.kill()
        if self._rank == 0:
            time.sleep(2 * self._interval)  # the others read the verdict here
        os._exit(1)


def _key(rank: int) -> str:
    return f"beat/{rank}"


class HeartbeatCallback(Callback):  # type: ignore[misc]
    """Watches a run from the moment its ranks have found one another until they part.

    The last of a trainer's callbacks, so that the others' last acts are watched too.

    Args:
        timeout: ``trainer.heartbeat_timeout``; 0: no watch.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._watch: Watch | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Start the watch. Reading data and checkpoint may take any time; from the first batch on, progress is due."""
        if not self._timeout:
            return
        host = trainer.strategy.cluster_environment.main_address
        port = [0]
        rank, world_size = trainer.global_rank, trainer.world_size
        patience = timedelta(seconds=self._timeout)
        if rank == 0:
            store = dist.TCPStore(host, 0, None, is_master=True, timeout=patience, wait_for_workers=False)  # type: ignore[attr-defined]
            port = [store.port]
        dist.broadcast_object_list(port, src=0)
        if rank:
            store = dist.TCPStore(host, port[0], None, is_master=False, timeout=patience)  # type: ignore[attr-defined]
        speaks = rank == 1 or trainer.local_rank == 0
        self._watch = Watch(store, rank, world_size, self._timeout, speaks=speaks)
        dist.barrier()
        self._watch.start()

    def busy(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Return a context in which no progress is due."""
        return contextlib.nullcontext() if self._watch is None else self._watch.busy(what)

    def find_lost(self) -> list[str]:
        """Return the ranks that give no sign any more; none where there is no watch."""
        return [] if self._watch is None else self._watch.find_lost()

    def wait(self) -> None:
        """Stay until the other ranks have found out who is lost: rank 0 holds what they ask."""
        if self._watch is not None:
            self._watch.wait()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Count every micro batch as progress."""
        for chunk in pl_module.chunks:
            chunk.register_forward_pre_hook(lambda module, inputs: self._beat(trainer))

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Beat."""
        self._beat(trainer)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Beat."""
        self._beat(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Stop the watch once every rank is here."""
        if self._watch is not None:
            dist.barrier()
            self._watch.stop()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Stop the watch: this process ends, and its launcher ends the others."""
        if self._watch is not None:
            self._watch.stop()

    def _beat(self, trainer: Any) -> None:
        if self._watch is not None:
            self._watch.beat(trainer.global_step)
