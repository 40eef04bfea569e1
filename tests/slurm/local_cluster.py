# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""A real SLURM with two nodes on this machine, in a folder of its own: munged, slurmctld and two slurmd on loopback."""

import contextlib
import getpass
import os
import random
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil

from nemo_sr.training.launch import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")
# Names that are loopback addresses: ranks meet at the first host of the job's list, whose name must resolve.
NODES = ("127.0.0.2", "127.0.0.3")

# What SLURM counts as GPUs are empty files: enough for what it gives a job and says of it.
# cred_expire: so long is a job held that was requeued; SLURM's own value is 120 s.
_CONFIGURATION = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdTimeout=15
KillWait=30
ReturnToService=2
GresTypes=gpu
MpiDefault=none
PropagateResourceLimits=NONE
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
FirstJobId={first_job}
"""
_NODE = "NodeName={name} NodeHostname=localhost NodeAddr={name} Port={port} CPUs=2 Gres=gpu:2\n"
_PARTITIONS = """\
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1 GraceTime=60 State=UP
PartitionName=urgent Nodes=ALL MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF State=UP
"""


def missing_programs() -> list[str]:
    """Return the programs that a cluster needs and this machine has not."""
    return [program for program in PROGRAMS if shutil.which(program, path=_path()) is None]


def _path() -> str:
    return os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])


class LocalCluster:
    """Starts the daemons in the constructor; ``close`` ends them and everything that they started.

    Args:
        folder: For their files; its path must be short, for there are sockets in it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.daemons: dict[str, subprocess.Popen] = {}
        self.environment = {
            # Nothing of a SLURM that the tests themselves may run under.
            **{name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))},
            "PATH": _path(),
            "SLURM_CONF": str(folder / "slurm.conf"),
        }
        ports = random.sample([free_port() for _ in range(20)], 3)
        text = _CONFIGURATION.format(
            folder=folder, user=getpass.getuser(), port=ports[0], first_job=random.randrange(1000, 60000)
        )
        nodes = [_NODE.format(name=name, port=port) for name, port in zip(NODES, ports[1:], strict=True)]
        (folder / "slurm.conf").write_text(text + "".join(nodes) + _PARTITIONS)
        for number in range(2):
            (folder / f"gpu{number}").touch()
        (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-1]\n")
        (folder / "state").mkdir()
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "munge.key").chmod(0o400)
        folder.chmod(0o755)
        names = {"key-file": "key", "socket": "socket", "pid-file": "pid", "seed-file": "seed", "log-file": "log"}
        munge = [f"--{option}={folder}/munge.{ending}" for option, ending in names.items()]
        self._start("munged", "--foreground", "--force", *munge)
        self._wait(lambda: (folder / "munge.socket").exists())
        self._start("slurmctld", "-D")
        for name in NODES:
            self.start_node(name)
        self._wait(lambda: self.states() == ["idle", "idle"])

    def _start(self, program: str, *words: str, name: str | None = None) -> None:
        with (self.folder / f"{name or program}.out").open("a") as output:
            self.daemons[name or program] = subprocess.Popen(
                [shutil.which(program, path=_path()), *words],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def start_node(self, name: str) -> None:
        """Start the daemon of a node."""
        self._start("slurmd", "-D", "-N", name, name=name)

    def kill_node(self, name: str) -> None:
        """Kill the daemon of a node, as a node fails: no goodbye. Its tasks live on."""
        self.daemons[name].kill()
        self.daemons[name].wait()

    def _wait(self, predicate, timeout: float = 60) -> None:
        deadline = time.monotonic() + timeout
        while not predicate():
            if time.monotonic() > deadline:
                outputs = {path.name: path.read_text()[-2000:] for path in self.folder.glob("*.out")}
                self.close()
                raise RuntimeError(f"The local SLURM did not start within {timeout} s: {outputs}")
            time.sleep(0.1)

    def call(self, program: str, *words: str, **environment: str) -> str:
        """Return what a program of SLURM prints."""
        done = subprocess.run(
            [program, *words],
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, f"{program} {' '.join(words)}: {done.stderr}"
        return done.stdout

    def states(self) -> list[str]:
        """Return the state of each node."""
        with contextlib.suppress(AssertionError):
            return self.call("sinfo", "--Node", "--noheader", "--partition=main", "--format=%T").split()
        return []

    def submit(self, *words: str, cwd: Path, log: Path, **environment: str) -> str:
        """Submit a job from `cwd`; return its number."""
        done = subprocess.run(
            ["sbatch", "--parsable", f"--output={log}", *words],
            cwd=cwd,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def describe(self, job: str) -> dict[str, str]:
        """Return what ``scontrol show job`` says."""
        return dict(re.findall(r"(\w+)=(\S*)", self.call("scontrol", "--oneliner", "show", "job", job)))

    def wait(self, job: str, timeout: float = 120) -> dict[str, str]:
        """Wait until a job is over for good; return its description."""
        deadline = time.monotonic() + timeout
        while True:
            found = self.describe(job)
            if found["JobState"] not in ("PENDING", "RUNNING", "COMPLETING", "REQUEUED", "SUSPENDED"):
                return found
            assert time.monotonic() < deadline, f"job {job} is {found['JobState']} ({found['Reason']}) still"
            time.sleep(0.2)

    def close(self) -> None:
        """End all jobs, all daemons, and what they left."""
        with contextlib.suppress(AssertionError, subprocess.SubprocessError, OSError):
            self.call("scancel", "--user", getpass.getuser())
        deadline = time.monotonic() + 3
        while self._left() and time.monotonic() < deadline:
            time.sleep(0.1)
        for daemon in reversed(self.daemons.values()):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(daemon.pid, signal.SIGKILL)
            daemon.wait()
        for process in self._left():  # steps that outlive their daemon, and their tasks
            with contextlib.suppress(psutil.Error):
                process.kill()

    def _left(self) -> list[psutil.Process]:
        ours = {daemon.pid for daemon in self.daemons.values()}
        left = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.pid not in ours and process.environ().get("SLURM_CONF") == self.environment["SLURM_CONF"]:
                    left.append(process)
        return left
