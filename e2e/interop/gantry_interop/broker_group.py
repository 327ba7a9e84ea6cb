"""A replicated group of Gantry's brokers as real processes, switched by `gantry ha` as an administrator would do it.

    NameServer  <- registered -  member 1, 2, 3: booted without a role, each with a store and a control socket

All role changes go through the command line: the duration of a failover includes the start of that command.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from gantry_interop import probe
from gantry_interop.errors import InteropError
from gantry_interop.processes import Child, Nursery, wait_until
from gantry_testing.ports import free_port, free_port_run

READY_SECONDS_MAX = 240.0
COMMAND_SECONDS_MAX = 240.0
LOG_FILE_BYTES = 16 << 20
AUTO_CREATE_TOPIC = "TBW102"


@final
@dataclass
class Member:
    """One broker, which may be started several times."""

    number: int
    conf: Path
    store: Path
    child: Child | None = None

    @property
    def control(self) -> Path:
        return self.store / "control.sock"

    def log(self, begin: int, end: int) -> bytes:
        """Return a range of the member's log, read from its files."""
        parts: list[bytes] = []
        for base in range(begin - begin % LOG_FILE_BYTES, end, LOG_FILE_BYTES):
            data = (self.store / "commitlog" / f"{base:020d}").read_bytes()
            parts.append(data[max(begin - base, 0) : end - base])
        return b"".join(parts)


@final
class BrokerGroup:
    """A name server and members 1 to ``count``, with a Python program of Gantry's broker."""

    def __init__(
        self, nursery: Nursery, directory: Path, count: int, settings: Mapping[str, str],
        program: Sequence[str] = ("-m", "gantry_broker"),
    ) -> None:  # fmt: skip
        self._nursery = nursery
        self._program = program
        self._directory = directory
        self.address = f"127.0.0.1:{free_port()}"
        self.members = [self._member(number, settings) for number in range(1, count + 1)]

    def __getitem__(self, number: int) -> Member:
        return self.members[number - 1]

    def _member(self, number: int, settings: Mapping[str, str]) -> Member:
        port = free_port_run(2)
        store = self._directory / f"store-{number}"
        pairs = {
            "brokerClusterName": "InteropCluster",
            "brokerName": "broker-a",
            "brokerId": str(number),
            "roleAtStart": "UNASSIGNED",
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": str(port),
            "haListenPort": str(port + 1),
            "fastListenPort": "-1",
            "namesrvAddr": self.address,
            "storePathRootDir": str(store),
            "mappedFileSizeCommitLog": str(LOG_FILE_BYTES),
            "waitTimeMillsInSendQueue": "5000",
            **settings,
        }
        conf = self._directory / f"broker-{number}.conf"
        conf.parent.mkdir(parents=True, exist_ok=True)
        conf.write_text("".join(f"{name}={value}\n" for name, value in pairs.items()))
        return Member(number, conf, store)

    def start(self) -> None:
        """Start the name server and all members, without roles."""
        data = self._directory / "name-server-data"
        command = [sys.executable, "-m", "gantry_nameserver", "--listen", self.address, "--data", str(data)]
        self._nursery.start("name-server", command, os.environ)
        for member in self.members:
            self.start_member(member)

    def start_member(self, member: Member) -> None:
        """Start a member and wait until it accepts orders."""
        member.control.unlink(missing_ok=True)
        command = [sys.executable, *self._program, "-c", str(member.conf)]
        member.child = self._nursery.start(f"broker-{member.number}", command, os.environ)
        wait_until("the control socket", member.control.is_socket, READY_SECONDS_MAX, member.child)

    def begin(self, number: int) -> None:
        """Make this member the first master, and have all others follow it."""
        electable = [word for member in self.members for word in ("--electable", str(member.number))]
        self.promote("--to", str(number), *electable)
        followers = len(self.members) - 1
        wait_until("the slaves", lambda: len(self.master_status()["slaves"]) == followers, READY_SECONDS_MAX)
        wait_until(
            "the master's registration", lambda: probe.has_route(self.address, AUTO_CREATE_TOPIC), READY_SECONDS_MAX
        )

    def promote(self, *words: str) -> dict[str, Any]:
        """Run `gantry ha promote` for all members; return its output."""
        return self._command("promote", *words, "--json", paths=[member.control for member in self.members])

    def follow(self, member: Member, master: Member, epoch: int) -> dict[str, Any]:
        """Run `gantry ha follow` for one member."""
        address = self.status(master)["ha_address"]
        words = ("follow", "--epoch", str(epoch), "--master", address, "--json")
        return self._command(*words, paths=[member.control])

    def statuses(self) -> list[dict[str, Any] | None]:
        """Return the status of every member; None for one that does not answer."""
        answer = self._command("status", "--json", paths=[member.control for member in self.members], codes=(0, 1))
        return [one["status"] for one in answer["members"]]

    def status(self, member: Member) -> dict[str, Any]:
        status = self.statuses()[member.number - 1]
        if status is None:
            raise InteropError(f"member {member.number} does not answer")
        return status

    def master_status(self) -> dict[str, Any]:
        """Return the status of the master of the newest epoch."""
        masters = [status for status in self.statuses() if status is not None and status["role"] == "MASTER"]
        return max(masters, key=lambda status: int(status["epoch"]))

    def _command(self, *words: str, paths: Sequence[Path], codes: Sequence[int] = (0,)) -> dict[str, Any]:
        sockets = [word for path in paths for word in ("--socket", str(path))]
        command = [sys.executable, "-m", "gantry_cli", "ha", *words, *sockets]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX, check=False)
        if done.returncode not in codes:
            raise InteropError(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def kill(self, member: Member) -> float:
        """Kill a member with SIGKILL; return the wall-clock time at which it was gone."""
        assert member.child is not None, f"member {member.number} does not run"
        member.child.kill()
        member.child = None
        return time.time()

    def signal(self, member: Member, number: signal.Signals) -> None:
        """Send a signal to the member's process, such as SIGSTOP or SIGCONT."""
        if member.child is not None:
            member.child.process.send_signal(number)

    def stop(self) -> None:
        """Stop all members cleanly, the highest number first, so that all data is on disk."""
        for member in reversed(self.members):
            if member.child is not None:
                member.child.stop()
                member.child = None
