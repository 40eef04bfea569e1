# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Who started this process: torchrun, srun or a person, and whether that agrees with the configuration."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from omegaconf import DictConfig

from nemo_sr.data.parallel import usable_cores
from nemo_sr.training.config import ConfigError
from nemo_sr.training.startup import BEGAN


@dataclass(frozen=True)
class Launch:
    """What the environment says about this process."""

    launcher: str
    """"torchrun", "slurm" or "none"."""

    rank: int
    world_size: int
    local_world_size: int


def detect_launch(env: Mapping[str, str]) -> Launch:
    """Return who started this process, from its environment."""
    if "RANK" in env and "WORLD_SIZE" in env:
        world_size = int(env["WORLD_SIZE"])
        return Launch("torchrun", int(env["RANK"]), world_size, int(env.get("LOCAL_WORLD_SIZE", world_size)))
    in_step = "SLURM_STEP_ID" in env or "SLURM_STEPID" in env  # srun's tasks have it, the batch script has not
    if in_step and env.get("SLURM_JOB_NAME") not in ("bash", "interactive"):
        num_tasks = int(env.get("SLURM_NTASKS", "1"))
        num_nodes = int(env.get("SLURM_NNODES", "1"))
        return Launch("slurm", int(env.get("SLURM_PROCID", "0")), num_tasks, num_tasks // num_nodes)
    return Launch("none", 0, 1, 1)


def check_launch(launch: Launch, trainer: DictConfig) -> None:
    """Check that as many processes were started as the configuration says.

    Raises:
        ConfigError: with both numbers.
    """
    if launch.launcher == "none":
        return
    expected = trainer.devices * trainer.num_nodes
    if (launch.world_size, launch.local_world_size) != (expected, trainer.devices):
        raise ConfigError(
            f"trainer.devices * trainer.num_nodes must be the number of processes that {launch.launcher} started; they "
            f"are {trainer.devices} * {trainer.num_nodes} = {expected}, and it started {launch.world_size} "
            f"({launch.local_world_size} on this node). Set trainer.devices={launch.local_world_size} "
            f"trainer.num_nodes={max(1, launch.world_size // launch.local_world_size)}, or start {expected} processes."
        )


def start_processes(trainer: DictConfig, argv: Sequence[str], *, began: float) -> int:
    """Run this program once per device and wait: a person typed ``python``. Return the exit status.

    As torchrun does, with the same environment variables: when one process fails, the others are stopped. Unlike
    torchrun it lets a signal be answered with a checkpoint, however long that takes, and then ends with status 0.
    (Lightning would import NeMo here before it starts the others.)

    Args:
        trainer: The ``trainer`` part of the configuration.
        argv: The command line.
        began: When the command was given, in seconds since 1970.

    Raises:
        ConfigError: several nodes were asked for, which one command on one node cannot start.
    """
    if trainer.num_nodes > 1:
        raise ConfigError(
            f"trainer.num_nodes must be 1 when the program is started by hand; it is {trainer.num_nodes}. Start it "
            f"with srun, or on every node with: torchrun --nnodes={trainer.num_nodes} "
            f"--nproc_per_node={trainer.devices} --rdzv_backend=c10d --rdzv_endpoint=HOST:PORT "
            "scripts/pretrain_gpt.py ..."
        )
    main = sys.modules["__main__"]
    program = ["-m", main.__spec__.name] if main.__spec__ else [os.path.abspath(sys.argv[0])]
    env = {
        "OMP_NUM_THREADS": str(max(1, usable_cores() // trainer.devices)),
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(trainer.devices),
        "LOCAL_WORLD_SIZE": str(trainer.devices),
        BEGAN: str(began),
    }
    processes = [
        # A session of its own: a terminal's Ctrl-C comes here alone, once, and is passed on.
        subprocess.Popen(
            [sys.executable, *program, *argv],
            env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            start_new_session=True,
        )
        for rank in range(trainer.devices)
    ]

    def forward(signum: int, frame: object) -> None:
        for process in processes:
            process.send_signal(signal.SIGTERM if signum == signal.SIGHUP else signum)

    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signum, forward)
    return _wait(processes)


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> int:
    running, status = list(processes), 0
    while running:
        time.sleep(0.1)
        for process in [process for process in running if process.poll() is not None]:
            running.remove(process)
            if process.returncode and not status:
                # A signal's number comes back negative; a shell adds it to 128.
                status = process.returncode if process.returncode > 0 else 128 - process.returncode
                _stop(running)
                if status != 2:  # the process itself has said what is wrong with the command line
                    _report_death(processes.index(process), process.returncode)
    for process in processes:
        # What a process that was killed has left of its own.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return status


def _report_death(rank: int, returncode: int) -> None:
    end = f"was killed by signal {-returncode}" if returncode < 0 else f"ended with status {returncode}"
    print(  # noqa: T201
        f"error: rank {rank} {end}, and the others have been stopped. The same command goes on from the newest "
        "checkpoint, if there is one.",
        file=sys.stderr,
        flush=True,
    )


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + _GRACE_SECONDS
    for process in processes:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:  # noqa: PERF203
            process.kill()


_GRACE_SECONDS = 5


def free_port() -> int:
    """Return a port of this machine that nobody listens on.

    It is not used until every process has imported its libraries. So it lies below the range from which the system
    takes ports for outgoing connections, and would not be handed to one meanwhile.

    Raises:
        ConfigError: there is none.
    """
    # Not from the generator that runs seed: runs of one seed would meet at one port.
    for port in random.SystemRandom().sample(range(15000, 30000), 100):
        with contextlib.suppress(OSError), socket.socket() as listener:
            listener.bind(("127.0.0.1", port))
            return port
    raise ConfigError(
        "The processes need a free port between 15000 and 30000 on 127.0.0.1; 100 were tried and none was free. "
        "Start them with torchrun and a port of your choice."
    )


def exit_with(message: str, launch: Launch, status: int = 2) -> NoReturn:
    """Print `message` and end this process; once for all ranks where they fail together.

    The others wait for rank 0: a launcher kills every process as soon as the first has failed, rank 0 in the middle of
    its message as well. One that is still there afterwards failed alone, and speaks for itself.
    """
    speaker = ""
    if launch.rank:
        time.sleep(_SECONDS_FOR_RANK_0)
        speaker = f"rank {launch.rank}: "
    print(f"{speaker}error: {message}", file=sys.stderr, flush=True)  # noqa: T201
    sys.exit(status)


_SECONDS_FOR_RANK_0 = 10.0  # on a busy machine ranks start seconds apart
