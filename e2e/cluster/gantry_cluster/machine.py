"""A machine within the machine: one process 1 in namespaces of its own, and programs that join it.

    root namespaces                       a Machine
    ─────────────────                     ─────────────────────────────────────────────
    `up`  ── unshare ── process 1 ······· pid 1: pause (collects orphans, nothing else)
    `up`  ── nsenter ── program ········· pid n: etcd, kubelet, containerd, ...

Killing process 1 is pulling the plug: the kernel kills every process in the namespace at once, containers included,
and takes mounts and network devices apart. That is how a node crashes in a test and how all of them end in `down`; no
program has to be asked, and none can be forgotten.

What is shared with the real machine: the kernel, its time, its disk (but not /run, /var/lib and /var/log, which every
machine has of its own), and control groups.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gantry_cluster.commands import run, wait_until
from gantry_cluster.errors import CommandFailed
from gantry_cluster.journal import Journal
from gantry_cluster.processes import Process, child_of

START_SECONDS_MAX = 10.0


@dataclass
class Machine:
    """One process 1, and the programs started beside it."""

    name: str
    init: Process
    programs: dict[str, Process] = field(default_factory=dict)

    @classmethod
    def start(cls, name: str, pause: Path, journal: Journal) -> Machine:
        """New namespaces, held open by `pause`."""
        waiting = subprocess.Popen(
            ["unshare", "--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "--mount-proc", "--", str(pause)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        found: list[Process] = []

        def is_there() -> bool:
            child = child_of(waiting.pid)
            if child is not None:
                found[:] = [child]
            elif waiting.poll() is not None:
                raise CommandFailed(f"unshare ended with {waiting.returncode}: namespaces cannot be made here")
            # Before it has become `pause`, mounts of the new namespace may still be under way.
            return child is not None and Path(f"/proc/{child.pid}/comm").read_text().strip() == pause.name

        wait_until(f"process 1 of {name}", is_there, START_SECONDS_MAX)
        journal.process(found[0])
        machine = cls(name, found[0])
        machine.run("hostname", name)
        machine.run("ip", "link", "set", "lo", "up")
        return machine

    def is_alive(self) -> bool:
        """Whether its process 1 runs."""
        return self.init.is_alive()

    def enter(self, words: Sequence[str | Path]) -> list[str]:
        """The command that runs a program in this machine."""
        namespaces = ("--mount", "--net", "--pid", "--uts", "--ipc")
        return ["nsenter", "--target", str(self.init.pid), *namespaces, "--", *(str(word) for word in words)]

    def run(self, *words: str | Path, stdin: str | None = None) -> str:
        """Run a program in this machine to its end."""
        return run(*self.enter(words), stdin=stdin)

    def mount(self, *words: str | Path) -> None:
        """A mount that only this machine sees."""
        self.run("mount", *words)

    def set(self, name: str, value: str) -> None:
        """A setting of this machine's own network."""
        self.run("tee", f"/proc/sys/{name}", stdin=value)

    def spawn(self, name: str, words: Sequence[str | Path], log: Path) -> Process:
        """Start a program that stays."""
        with log.open("ab") as output:
            entering = subprocess.Popen(
                self.enter(words), stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        found: list[Process] = []

        def is_there() -> bool:
            if entering.poll() is not None:
                raise CommandFailed(f"{name} in {self.name} ended at once; see {log}")
            child = child_of(entering.pid)
            found[:] = [child] if child else []
            return bool(found)

        wait_until(f"{name} in {self.name}", is_there, START_SECONDS_MAX, log)
        self.programs[name] = found[0]
        return found[0]
