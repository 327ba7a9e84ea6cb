"""`gantry ha` with broker processes: the role moves, and acknowledged messages survive."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, final

import pytest

from gantry_remoting import RemotingError
from gantry_status.socket_path import socket_address
from gantry_testing.local import Dialogue, local_conf

TIMEOUT_S: Final = 240.0


@final
class Member:
    """One broker of a group, started without a role, with any number of processes in turn."""

    def __init__(self, directory: Path, number: int, role: str, grant_ms: int) -> None:
        self.number = number
        self._conf = local_conf(
            directory / str(number),
            brokerId=str(number),
            brokerRole=role,
            roleAtStart="UNASSIGNED",
            haGrant=str(grant_ms),
        )
        self._log = directory / f"{number}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def control(self) -> Path:
        return Path(self._conf["storePathRootDir"]) / "control.sock"

    @property
    def option(self) -> list[str]:
        return ["--socket", str(self.control)]

    def start(self) -> None:
        """Start the broker, and wait until it takes orders."""
        options = [part for key, value in self._conf.items() for part in ("-o", f"{key}={value}")]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([sys.executable, "-m", "gantry_broker", *options], stdout=log, stderr=log)
        deadline = time.monotonic() + TIMEOUT_S
        while not self.control.is_socket() or self._process.pid != holder_of(self.control):
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.05)

    def order(self, *words: str) -> str:
        """One order to this member alone, as JSON."""
        command = gantry("ha", *words, *self.option, "--json")
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True).stdout

    def kill(self) -> None:
        """Kill the broker with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
            self._process = None

    async def connect(self) -> Dialogue:
        """Connect to the broker as a client."""
        return await Dialogue.open(f"127.0.0.1:{self._conf['listenPort']}")

    def send(self, *bodies: str) -> list[int]:
        """Send messages, and return the codes of the answers."""

        async def talk() -> list[int]:
            peer = await self.connect()
            codes = [(await peer.send(body.encode())).code for body in bodies]
            await peer.close()
            return codes

        return asyncio.run(talk())

    def read(self, count: int) -> list[str]:
        """Return what a consumer sees in the first queue, once that are ``count`` messages.

        They become visible a moment after they are acknowledged.
        """

        async def talk() -> list[str]:
            peer = await self.connect()
            bodies: list[str] = []
            async with asyncio.timeout(TIMEOUT_S):
                while (messages := await peer.read(len(bodies))) or len(bodies) < count:
                    bodies += [message.body.decode() for message in messages]
            await peer.close()
            return bodies

        return asyncio.run(talk())


def holder_of(path: Path) -> int:
    """Return the process that listens on a socket, or -1 if none does at this moment."""
    with socket.socket(socket.AF_UNIX) as peer:
        try:
            with socket_address(str(path)) as address:
                peer.connect(address)
        except (ConnectionRefusedError, FileNotFoundError):
            return -1
        pid: int = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        return pid


def gantry(*words: str) -> list[str]:
    return [sys.executable, "-m", "gantry_cli", *words]


@final
class Group:
    """The members of a group, and `gantry ha` for all of them."""

    def __init__(self, members: list[Member]) -> None:
        self.members = members

    def __getitem__(self, number: int) -> Member:
        return self.members[number - 1]

    def ha(self, *words: str, code: int = 0) -> str:
        """Run one command, which must end with ``code``; return its standard output and standard error."""
        options = [word for member in self.members for word in member.option]
        result = subprocess.run(
            gantry("ha", *words, *options), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        assert result.returncode == code, f"{words}\n{result.stdout}\n{result.stderr}"
        return result.stdout + result.stderr

    def statuses(self) -> list[dict[str, object] | None]:
        """As `gantry ha status --json` shows them."""
        options = [word for member in self.members for word in member.option]
        result = subprocess.run(gantry("ha", "status", *options, "--json"), capture_output=True, text=True, check=False)
        return [one["status"] for one in json.loads(result.stdout)["members"]]

    def roles(self) -> list[object]:
        return [None if status is None else status["role"] for status in self.statuses()]

    def until_joined(self, followers: int) -> None:
        """Until so many slaves are streaming."""
        deadline = time.monotonic() + TIMEOUT_S
        while not any(status and len(status["slaves"]) >= followers for status in self.statuses()):  # type: ignore[arg-type]
            assert time.monotonic() < deadline, self.statuses()
            time.sleep(0.05)


def group_of(directory: Path, count: int, role: str, grant_ms: int = 1_000) -> Iterator[Group]:
    members = [Member(directory, number, role, grant_ms) for number in range(1, count + 1)]
    try:
        for member in members:
            member.start()
        yield Group(members)
    finally:
        for member in members:
            member.kill()


@pytest.fixture
def sync_group(tmp_path: Path) -> Iterator[Group]:
    """Three members; code 0 needs one ack."""
    yield from group_of(tmp_path, 3, "SYNC_MASTER")


@pytest.fixture
def async_group(tmp_path: Path) -> Iterator[Group]:
    """Two members; code 0 needs no ack, and a grant lasts longer than the start of a command on a busy machine."""
    yield from group_of(tmp_path, 2, "ASYNC_MASTER", 15_000)


@pytest.fixture
def patient_group(tmp_path: Path) -> Iterator[Group]:
    """The same group, with grants that last longer than any delay of a slow machine."""
    yield from group_of(tmp_path, 2, "ASYNC_MASTER", 60_000)


EVERYBODY: Final = ("--electable", "1", "--electable", "2", "--electable", "3")


@pytest.mark.verify
def test_synchronous_group_is_started_moved_and_survives_its_master(sync_group: Group) -> None:
    """Its first master is promoted by hand and hands over; after kill -9 of the second, the slaves' records suffice."""
    group = sync_group
    assert group.roles() == ["UNASSIGNED"] * 3
    group.ha("promote", *EVERYBODY)
    assert group.roles() == ["MASTER", "SLAVE", "SLAVE"]
    group.until_joined(2)
    assert group[1].send("a", "b") == [0, 0]

    moved = group.ha("promote", "--to", "2")
    assert "test-broker/2 is the master in epoch 2002" in moved
    assert group.roles() == ["SLAVE", "MASTER", "SLAVE"]
    group.until_joined(2)
    assert group[2].send("c") == [0]

    group[2].kill()
    took = group.ha("promote")
    assert "possibly lost" not in took, took
    winner = group.roles().index("MASTER") + 1
    group.until_joined(1)
    assert group[winner].send("d") == [0]
    assert group[winner].read(4) == ["a", "b", "c", "d"]

    group[2].start()
    assert group.roles()[1] == "UNASSIGNED"
    group.ha("promote", "--to", str(winner))
    group.until_joined(2)
    assert group.roles()[1] == "SLAVE"


@pytest.mark.verify
def test_promotion_with_too_few_members_is_refused(sync_group: Group) -> None:
    """No promise is requested in vain: the remaining slave is unchanged."""
    group = sync_group
    group.ha("promote", *EVERYBODY)
    group.until_joined(2)
    group[1].kill()
    group[3].kill()

    refused = group.ha("promote", code=1)
    statuses = group.statuses()

    assert "2 of the slaves [2, 3] of epoch 1001 must vote, and [3] cannot" in refused
    assert statuses[1] is not None and statuses[1]["promised_epoch"] == statuses[1]["epoch"] == 1001


@pytest.mark.verify
def test_asynchronous_group_is_promoted_after_grants_expired(async_group: Group) -> None:
    """The old master is dead, but its grants count until they expire."""
    group = async_group
    group.ha("promote", "--to", "1", "--electable", "1", "--electable", "2")
    group.until_joined(1)
    assert group[1].send("a") == [0]
    group[1].kill()

    took = group.ha("promote")

    assert "wait" in took and "may still acknowledge: its Lease or its slaves' grants are valid" in took
    assert "an asynchronous group has no other copy of them" in took
    assert group.roles() == [None, "MASTER"]


@pytest.mark.verify
def test_restarted_slave_still_knows_its_grants(patient_group: Group) -> None:
    """Its last process may have granted just before, so a promotion waits as long as its disk records."""
    group = patient_group
    group.ha("promote", "--to", "1", "--electable", "1", "--electable", "2")
    group.until_joined(1)
    group[1].kill()
    group[2].kill()
    group[2].start()

    promised = json.loads(group[2].order("promise", "--epoch", "5000"))

    assert 0 < promised["granted_ms"] <= 60_000


@pytest.mark.verify
def test_acknowledged_messages_survive_promotions_under_load(sync_group: Group) -> None:
    """During sends two masters hand over and one is killed; every acknowledged message is in the log."""
    group = sync_group
    group.ha("promote", *EVERYBODY)
    group.until_joined(2)
    load = Load(group)
    load.start()

    load.until_acknowledged(20)
    group.ha("promote", "--to", "2")
    load.until_acknowledged(20)
    group.until_joined(2)
    group.ha("promote", "--to", "3")
    load.until_acknowledged(20)
    group.until_joined(2)
    group[3].kill()
    group.ha("promote")
    load.until_acknowledged(20)
    load.stop()

    master = group[group.roles().index("MASTER") + 1]
    stored = master.read(len(load.acknowledged))
    assert [body for body in load.acknowledged if body not in set(stored)] == []
    assert len(load.acknowledged) >= 80


@final
class Load(threading.Thread):
    """A producer that tries one member after the other, with a new message each time."""

    def __init__(self, group: Group) -> None:
        super().__init__(name="load")
        self.acknowledged: list[str] = []
        self._group = group
        self._is_stopping = False
        self._sent = 0

    def stop(self) -> None:
        self._is_stopping = True
        self.join(TIMEOUT_S)

    def until_acknowledged(self, more: int) -> None:
        """Until so many more messages were answered 0."""
        count, deadline = len(self.acknowledged) + more, time.monotonic() + TIMEOUT_S
        while len(self.acknowledged) < count:
            assert time.monotonic() < deadline, f"{self._sent} sent, {len(self.acknowledged)} acknowledged"
            time.sleep(0.02)

    def run(self) -> None:
        member = 0
        while not self._is_stopping:
            member = member % len(self._group.members) + 1
            with suppress(OSError, RemotingError):
                asyncio.run(self._talk(member))

    async def _talk(self, member: int) -> None:
        """Send to one member while it answers 0."""
        peer = await self._group[member].connect()
        try:
            while not self._is_stopping:
                self._sent += 1
                body = f"m{self._sent}"
                if (await peer.send(body.encode())).code != 0:
                    return
                self.acknowledged.append(body)
        finally:
            await peer.close()


@pytest.mark.verify
def test_slaves_report_the_acks_their_master_needed(tmp_path: Path) -> None:
    """With their own setting too few promises would be requested to keep acknowledged messages."""
    members = [Member(tmp_path, 1, "SYNC_MASTER", 1_000), Member(tmp_path, 2, "ASYNC_MASTER", 1_000)]
    group = Group(members)
    try:
        for member in members:
            member.start()
        group.ha("promote", "--to", "1", "--electable", "1", "--electable", "2")
        group.until_joined(1)
        statuses = group.statuses()
    finally:
        for member in members:
            member.kill()

    for status in statuses:
        assert status is not None
        assert (status["epoch"], status["electable"], status["master_id"], status["acks_needed"]) == (1001, [2], 1, 1)
