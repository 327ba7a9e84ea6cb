"""A machine within the machine: one process 1 in namespaces of its own, and programs that join it.

    root namespaces                       a Machine
    ─────────────────                     ─────────────────────────────────────────────
    `up`  ── unshare ── process 1 ······· pid 1: pause (collects orphans, nothing else)
    `up`  ── nsenter ── program ········· pid n: etcd, kubelet, containerd, ...

Killing process 1 cuts the power: the kernel kills every process in the namespace at once, containers included,
and takes mounts and network devices apart. That is how a node crashes in a test and how all of them end in `down`: no
program has to cooperate, and none can be missed.

What is shared with the real machine: the kernel, its time, its disk (but not /run, /var/lib and /var/log, which every
node has of its own; the hub shares them), and control groups.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gantry_cluster.commands import run, tail, wait_until
from gantry_cluster.errors import CommandFailed
from gantry_cluster.journal import END_SECONDS_MAX, Journal
from gantry_cluster.processes import Process, child_of, is_running, start_detached

START_SECONDS_MAX = 10.0
"""The limit for a process to start."""


def _record_process(journal: Journal, pid: int) -> None:
    """Record a process that was just started, unless it has ended already."""
    process = Process.of(pid)
    if process is not None:
        journal.process(process)


@dataclass(frozen=True)
class Program:
    """A program that was started to keep running, with its command line."""

    process: Process
    command: tuple[str, ...]
    """The command line, for a new start."""

    log: Path


@dataclass
class Machine:
    """One process 1, and the programs started beside it."""

    name: str
    init: Process
    """Its process 1, with the process id that it has in the root namespace."""

    journal: Journal
    programs: dict[str, Program] = field(default_factory=dict)

    @classmethod
    def start(cls, name: str, pause: Path, journal: Journal, log: Path) -> Machine:
        """Create new namespaces, held open by `pause`."""
        namespaces = ("--mount", "--net", "--pid", "--uts", "--ipc")
        waiting = start_detached(["unshare", *namespaces, "--fork", "--mount-proc", "--", str(pause)], log)
        _record_process(journal, waiting)
        found: list[Process] = []

        def is_there() -> bool:
            child = child_of(waiting)
            if child is not None:
                found[:] = [child]
            elif not is_running(waiting):
                raise CommandFailed(f"namespaces cannot be made here; see {log}:\n{tail(log)}")
            # Until the child has become `pause`, mounts of the new namespace may still be in progress.
            return child is not None and Path(f"/proc/{child.pid}/comm").read_text().strip() == pause.name

        wait_until(f"process 1 of {name}", is_there, START_SECONDS_MAX)
        journal.process(found[0])
        machine = cls(name, found[0], journal)
        machine.run("hostname", name)
        machine.run("ip", "link", "set", "lo", "up")
        return machine

    def is_alive(self) -> bool:
        """Return whether its process 1 runs."""
        return self.init.is_alive()

    def stop(self) -> None:
        """Cut the power, and wait until every process in it has ended."""
        self.init.send(signal.SIGKILL)
        wait_until(f"the end of {self.name}", lambda: not self.is_alive(), END_SECONDS_MAX)

    def enter(self, words: Sequence[str | Path], *, is_networked: bool = True) -> list[str]:
        """Return the command that runs a program in this machine; with ``is_networked`` unset, in the real machine's
        network."""
        network = ("--net",) if is_networked else ()
        namespaces = ("--mount", *network, "--pid", "--uts", "--ipc")
        return ["nsenter", "--target", str(self.init.pid), *namespaces, "--", *(str(word) for word in words)]

    def run(self, *words: str | Path, stdin: str | None = None) -> str:
        """Run a program in this machine to its end."""
        return run(*self.enter(words), stdin=stdin)

    def mount(self, *words: str | Path) -> None:
        """Mount a file system that is visible only in this machine."""
        self.run("mount", *words)

    def set(self, name: str, value: str) -> None:
        """Change a setting of this machine's own network."""
        self.run("tee", f"/proc/sys/{name}", stdin=value)

    def spawn(self, name: str, words: Sequence[str | Path], log: Path) -> Process:
        """Start a program that keeps running."""
        entering = start_detached(self.enter(words), log)
        # `nsenter` waits for the program, and stops when the program is stopped; `down` ends it before process 1.
        _record_process(self.journal, entering)
        found: list[Process] = []

        def is_there() -> bool:
            if not is_running(entering):
                raise CommandFailed(f"{name} in {self.name} ended at once; see {log}:\n{tail(log)}")
            child = child_of(entering)
            found[:] = [child] if child else []
            return bool(found)

        wait_until(f"{name} in {self.name}", is_there, START_SECONDS_MAX, log)
        self.programs[name] = Program(found[0], tuple(str(word) for word in words), log)
        return found[0]

    def respawn(self, program: str) -> Process:
        """Start a program again that has ended."""
        kept = self.programs[program]
        assert not kept.process.is_alive(), f"{program} in {self.name} still runs"
        return self.spawn(program, kept.command, kept.log)
