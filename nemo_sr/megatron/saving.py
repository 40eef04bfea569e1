# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Writing Megatron-core's distributed checkpoints in the background, by processes whose death is noticed.

Megatron-core 0.16.1 writes in processes that it forks, and waits for each to report. One that is killed, by the kernel
for want of memory say, never reports, and the wait is forever; so it is where psutil is missing. Its results travel
through a server process of its own, which takes seconds to start and outlives a rank that is killed. Here each writer
holds one end of a pipe, which the kernel closes when the writer dies, and results come back in a file without a name.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import queue
import signal
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, cast

from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory, is_main_replica
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
from torch.distributed.checkpoint.api import CheckpointException

_FORK = multiprocessing.get_context("fork")


class BackgroundSave:
    """One save of a sharded state dict, under way in other processes from the moment it is made.

    They hold the state as it is at that moment: training may go on. Every method is collective.

    Args:
        sharded_state_dict: What to save.
        folder: An empty folder that all ranks see.
        describe: Called with each file once it is written, in the process that wrote it; the results are in
            :attr:`described`.
    """

    def __init__(self, sharded_state_dict: dict[str, Any], folder: Path, describe: Callable[[Path], Any]) -> None:
        self.described: dict[str, Any] = {}
        strategy = _WatchedSave(describe)
        self._calls = AsyncCallsQueue()
        with _signals_held(), _without_server():
            request = dist_checkpointing.save(
                sharded_state_dict, str(folder), sharded_strategy=strategy, async_sharded_save=True
            )
            self._calls.schedule_async_request(request)
        self._results = strategy.results

    def is_done(self, *, wait: bool) -> bool:
        """Return whether every rank has written its files and the checkpoint's plan is there too.

        Args:
            wait: Wait until it is so.

        Raises:
            RuntimeError: a rank could not write, on every rank; rank 0 says which and why.
        """
        with _signals_held():
            try:
                finished = self._calls.maybe_finalize_async_calls(blocking=wait)
            except CheckpointException as error:
                causes = [f"rank {rank}: {cause}" for rank, (cause, _) in sorted(error.failures.items())]
                raise RuntimeError("; ".join(causes) or "rank 0 knows why") from None
        if finished and self._results is not None:
            self.described = self._results.described
        return bool(finished)


def num_bytes_here(sharded_state_dict: dict[str, Any]) -> int:
    """Return how many bytes of tensors this rank writes when it saves `sharded_state_dict`."""
    return sum(
        entry.data.numel() * entry.data.element_size()
        for entry in nested_values(sharded_state_dict)
        if isinstance(entry, (ShardedTensor, ShardedTensorFactory))
        and entry.data is not None
        and is_main_replica(entry.replica_id)
    )


class _WatchedSave(TorchDistSaveShardedStrategy):  # type: ignore[misc]
    """Megatron-core's way to save, with writers that are watched."""

    def __init__(self, describe: Callable[[Path], Any]) -> None:
        super().__init__("torch_dist", 1)
        self._describe = describe
        self.results: _Results | None = None

    def _get_save_and_finalize_callbacks(self, writer: Any, save_state_dict_ret: Any) -> Any:
        request = super()._get_save_and_finalize_callbacks(writer, save_state_dict_ret)
        if request.async_fn is None:
            return request
        self.results = writer.results_queue = _Results()
        rank, buckets, _ = request.async_fn_args
        transforms = [writer.transforms] if hasattr(writer, "transforms") else []
        return request._replace(
            async_fn=partial(_write_watched, transforms, self._describe), async_fn_args=[rank, buckets, self.results]
        )


class _Results:
    """Takes the place of Megatron-core's queue for one result; it lies in a file without a name, of any size."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with its last holder
        self.described: dict[str, Any] = {}

    def put(self, result: Any) -> None:
        pickle.dump(result, self._file)
        self._file.flush()

    def get_nowait(self) -> Any:
        """Return what the writers reported, or the error that they did not."""
        self._file.seek(0)
        try:
            written, self.described = pickle.load(self._file)
        except (EOFError, pickle.UnpicklingError):
            return RuntimeError("the process that writes the files ended without a report: something killed it")
        return written


def _write_watched(
    transforms: list[Any], describe: Callable[[Path], Any], rank: int, buckets: list[Any], results: _Results
) -> None:
    """Write each bucket in a process of its own; report all, or the first error. Runs in a forked process."""
    writers = {}
    for number, bucket in enumerate(buckets):
        receiver, sender = _FORK.Pipe(duplex=False)
        process = _FORK.Process(target=_write_bucket, args=(transforms, describe, number, bucket, sender))
        process.start()
        sender.close()  # from here on the writer alone holds it
        writers[receiver] = (number, process, Path(bucket[0]).name)
    written: Any = {}
    described = {}
    while writers:
        receiver = cast(Connection, wait(list(writers))[0])
        number, process, name = writers.pop(receiver)
        try:
            outcome, description = receiver.recv()
        except (EOFError, OSError):  # before its report, or in the middle of it
            process.join()
            outcome = RuntimeError(f"the process that wrote {name} was killed (exit code {process.exitcode})")
        if isinstance(outcome, Exception):
            for _, other, _ in writers.values():
                other.kill()
            written = outcome
            break
        written[number], described[name] = outcome, description
    results.put((written, described))


def _write_bucket(
    transforms: list[Any], describe: Callable[[Path], Any], number: int, bucket: Any, sender: Connection
) -> None:
    reports: queue.Queue[Any] = queue.Queue()
    counted: queue.Queue[int] = queue.Queue()
    counted.put(number)
    try:
        filesystem_async.FileSystemWriterAsync.write_preloaded_data(
            transforms, number, bucket, reports, counted, use_fsync=True
        )
        _, outcome = reports.get_nowait()
        description = None if isinstance(outcome, Exception) else describe(Path(bucket[0]))
    except Exception as error:
        outcome, description = error, None
    if isinstance(outcome, Exception):
        # Its own class may not survive the pipe.
        outcome = RuntimeError(f"{Path(bucket[0]).name}: {_system_error_behind(outcome)}")
    sender.send((outcome, description))


def _system_error_behind(error: BaseException) -> BaseException:
    # torch says "file write failed" where the system said which limit was met.
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    return cause or error


@contextlib.contextmanager
def _without_server() -> Iterator[None]:
    """Keep Megatron-core from starting a process that only passes results on."""
    before = filesystem_async._results_queue
    filesystem_async._results_queue = queue.Queue()
    try:
        yield
    finally:
        filesystem_async._results_queue = before


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Hold stop signals back, here for a moment and in the processes that are forked meanwhile for good.

    A launcher that signals every process of a rank (torchrun, SLURM) must not kill a save half-way.
    """
    held = {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
