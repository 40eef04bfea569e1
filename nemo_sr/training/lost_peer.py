# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What a rank says when another one has died under it: one message in place of a collective's traceback."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback

from nemo_sr.training.heartbeat import HeartbeatCallback

# What gloo, NCCL and the store say when the other end of a connection is gone.
_GONE = re.compile(
    r"Connection (closed|reset|refused)|connection was (closed|reset)|Broken pipe|[Ss]ocket (closed|error|Timeout)|"
    r"Failed to (recv|send)|ncclRemoteError|remote process exit"
)


def is_lost_connection(error: BaseException) -> bool:
    """Return whether `error` says that another rank can no longer be reached."""
    return isinstance(error, RuntimeError) and _GONE.search(str(error)) is not None


def describe_loss(error: BaseException, lost: list[str], checkpoint: Path | None) -> str:
    """Return the message.

    Args:
        error: What the collective raised.
        lost: The ranks that are gone, as far as that is known.
        checkpoint: The newest checkpoint of the run.
    """
    gone = f"{', '.join(lost)}: gone" if lost else "another one is gone"
    onward = f"goes on from {checkpoint}" if checkpoint else "begins anew, for there is no checkpoint yet"
    first = re.sub(r"^\[[^]]*:\d+\] ", "", str(error).splitlines()[0]).split(". ")[0]  # gloo adds its source and advice
    return (
        f"Every rank must be there until the end; {gone} ({first}). What that rank printed, or the system's log of its "
        f"node, says why. This rank ends too. The same command {onward}."
    )


class LostPeerCallback(Callback):  # type: ignore[misc]
    """Says which rank is gone when a collective fails. Before ``HeartbeatCallback``, which ends the watch.

    Args:
        heartbeat: Knows who gives signs of life.
        newest: Returns the newest checkpoint.
    """

    def __init__(self, heartbeat: HeartbeatCallback, newest: Callable[[], Path | None]) -> None:
        self._heartbeat, self._newest = heartbeat, newest
        self.has_reported = False

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Report it here: once Lightning has torn down, the launcher's SIGTERM would end the process before a word."""
        if not is_lost_connection(exception):
            return
        lost = self._heartbeat.find_lost()
        speaker = f"rank {trainer.global_rank}: " if trainer.global_rank else ""
        message = describe_loss(exception, lost, self._newest())
        print(f"{speaker}error: {message}", file=sys.stderr, flush=True)  # noqa: T201
        self.has_reported = True
        if trainer.global_rank == 0:
            self._heartbeat.wait()
