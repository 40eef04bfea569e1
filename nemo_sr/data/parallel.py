# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""An ordered map over worker processes with bounded memory."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_IN_FLIGHT_PER_WORKER = 3


def usable_cores() -> int:
    """Return how many processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_ordered(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    workers: int,
    initializer: Callable[..., None] | None = None,
    initargs: tuple[Any, ...] = (),
) -> Iterator[Result]:
    """Apply ``function`` to every item in worker processes and yield the results in the order of the items.

    Items are drawn only a few ahead of the results, so a stream of any length fits in memory. With one worker
    everything runs in this process.

    Args:
        function: A module-level function.
        items: Its arguments, picklable.
        workers: Number of processes, at least 1.
        initializer: Called once in every worker before the first item, if given.
        initargs: Its arguments.

    Raises:
        RuntimeError: a worker died, killed by the system for instance.
    """
    if workers == 1:
        if initializer is not None:
            initializer(*initargs)
        yield from map(function, items)
        return
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=(initializer, initargs))
    pending: deque[Future[Result]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) >= _IN_FLIGHT_PER_WORKER * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
        pool.shutdown(wait=True)
    except BrokenProcessPool as error:
        raise RuntimeError(
            f"all {workers} worker processes must live until the end; one died, most often because the machine ran out "
            "of memory. Try again with fewer --workers."
        ) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        # Only after an error or a signal are there any left. One that comes while the pool starts leaves workers that
        # no one would ever tell to end, and the program would wait for them at its exit.
        for worker in set(multiprocessing.active_children()) - others:
            worker.kill()


def _start_worker(initializer: Callable[..., None] | None, initargs: tuple[Any, ...]) -> None:
    """Leave signals to the parent, end when the parent ends, and initialise."""
    gc.freeze()  # the parent's garbage is not a fork's to destroy, which has none of its threads
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    if initializer is not None:
        initializer(*initargs)


def _end_with(sentinel: int) -> None:
    """End this process as soon as the parent is gone; otherwise its queue would keep it waiting for ever."""
    wait([sentinel])
    os._exit(1)
