"""Members, three by default, and a name server as real processes, and the faults that can be injected.

    with Network(3) as network:
        async with Group(directory, network) as group:
            await group.start()
            await supervisor.promote_first()        # see the module `supervisor`
            ...

Every member boots without a role and gets one by order over its control socket, as in production. Its store is a
directory, or a disk of its own whose power can be cut. Nothing here checks what the clients saw.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import Final, final

from crash.processes import ServerProcess
from faults.loop_disk import LoopDisk, loop_disk
from faults.modes import buffer_directory, lose_buffers
from faults.power import suspend
from gantry_histories.events import Queue
from replication.network import CLIENTS, Network

from gantry_remoting import Channel
from gantry_status.order_client import OrderClient
from gantry_status.orders import HaStatus, OrderError, StatusRequest
from gantry_testing.ports import free_port
from gantry_testing.slowness import patience
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.commands.admin import CreateTopic
from gantry_wire.commands.nameserver import QueryRoute

RUN_WITHOUT_GUARDS: Final = Path(__file__).resolve().parent / "run_without_guards.py"
"""The program of a broker from which guards of replication were removed."""

MEMBERS: Final = 3
"""The number of members, unless a test chooses another."""

TOPIC: Final = "Histories"
QUEUES: Final = tuple(Queue(TOPIC, number) for number in range(3))
DISK_MIB: Final = 128
"""The size of each member's own disk, in a group with disks."""

ORDER_TIMEOUT_S: Final = 20.0
POLL_S: Final = 0.02
_EXECUTE: Final = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"
"""A program that is replaced by another one, here by a broker, perhaps in a network namespace."""

SETTINGS: Final = {
    "brokerRole": "SYNC_MASTER",
    "roleAtStart": "UNASSIGNED",
    "mappedFileSizeCommitLog": str(1 << 20),
    "mappedFileSizeConsumeQueue": str(20 * 500),
    "maxMessageSize": str(256 << 10),
    "maxHashSlotNum": "500",
    "maxIndexNum": "2000",
    "flushConsumerOffsetInterval": "500",
    "waitTimeMillsInSendQueue": "60000",
    "slaveTimeout": "1000",
}
"""Settings with files so small that a short load rolls them.

A send may wait in the queue longer than on any busy machine, and waits a second for slaves.
"""


@final
class Member:
    """One broker of the group, over all its restarts."""

    def __init__(self, number: int, network: Network, directory: Path, disk: LoopDisk | None) -> None:
        self.number: Final = number
        self.host: Final = network.host(number)
        self.port: Final = 10911 if network.is_isolated else free_port()
        self.ha_port: Final = 10912 if network.is_isolated else free_port()
        self.directory: Final = directory
        self.store: Final = (disk.path if disk is not None else directory) / f"store-{number}"
        self.disk: Final = disk
        self.orders: Final = OrderClient(
            str(directory / f"control-{number}"), answer_timeout_s=patience(ORDER_TIMEOUT_S)
        )
        self.is_paused = False
        """Whether its process is suspended, by SIGSTOP."""

        self.is_cut_off = False
        """Whether the supervisor treats it as unreachable, too; its control socket still answers."""

        self._network: Final = network
        self._settings: dict[str, str] = {}
        self._without: tuple[str, ...] = ()
        self.process = self._make(())

    def __repr__(self) -> str:
        return f"<Member {self.number} {self.address} {self.process!r}>"

    @property
    def address(self) -> str:
        """Address where clients find it."""
        return f"{self.host}:{self.port}"

    @property
    def ha_address(self) -> str:
        return f"{self.host}:{self.ha_port}"

    @property
    def is_up(self) -> bool:
        """Whether it can receive orders."""
        return self.process.is_running and not self.is_paused and not self.is_cut_off

    def configure(self, settings: Mapping[str, str], without: Sequence[str] = ()) -> None:
        """Add settings for the next start; ``without`` names the guards that are removed from it."""
        assert not self.process.is_running
        self._settings |= settings
        self._without = tuple(without)
        pairs = {
            "brokerClusterName": "HistoryCluster",
            "brokerName": "group",
            "brokerId": str(self.number),
            "brokerIP1": self.host,
            "bindAddress": self.host,
            "listenPort": str(self.port),
            "fastListenPort": "-1",
            "haListenPort": str(self.ha_port),
            "storePathRootDir": str(self.store),
            "controlSocketPath": self.orders.path,
            **self._settings,
        }
        text = "".join(f"{key}={value}\n" for key, value in pairs.items())
        (self.directory / f"broker-{self.number}.conf").write_text(text)
        self.process = self._make(without)

    def _make(self, without: Sequence[str]) -> ServerProcess:
        program: tuple[str, ...] = ()
        if without:
            program = (str(RUN_WITHOUT_GUARDS), *(f"--without={guard}" for guard in without))
        broker = (*program, "-m", "gantry_broker", "-c", str(self.directory / f"broker-{self.number}.conf"))
        arguments = ["-c", _EXECUTE, *self._network.command(self.number), sys.executable, *broker]
        return ServerProcess(f"broker-{self.number}", arguments, "broker listening on", self.directory)

    async def status(self) -> HaStatus:
        """Return its status. Raises an ``OrderError``."""
        return await self.orders.call(StatusRequest())

    def pause(self) -> None:
        """Stop the process, as a long pause of its machine does."""
        self.process.send_signal(signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.is_paused = False

    async def kill(self) -> None:
        await self.process.kill()
        self.is_paused = False

    async def lose_power(self) -> None:
        """Cut the power: everything stops at one moment, and unsynced writes and all memory are lost."""
        assert self.disk is not None, "its store is on no disk whose power can be cut"
        await suspend(self.process.pid)
        self.disk.cut_power()
        await self.kill()
        buffers = self._settings.get("transientStorePoolPath")
        if buffers is not None:
            lose_buffers(Path(buffers))
        self.disk.restore()
        self.configure({"memoryScope": token_hex(4)}, self._without)  # no memory has come over to the next run


@final
class Group:
    """A group of members and its name server. Owned by one loop."""

    def __init__(
        self, directory: Path, network: Network, *, members: int = MEMBERS,
        settings: Mapping[str, str] | None = None, without: Sequence[str] = (), has_disks: bool = False,
        has_buffers: bool = False,
    ) -> None:  # fmt: skip
        """Describe a group whose processes do not run yet.

        ``without`` names guards that all brokers lack (`run_without_guards`). With ``has_disks`` each store is on a
        disk whose power can be cut; with ``has_buffers`` write buffers survive their process.
        """
        self.directory: Final = directory
        self.network: Final = network
        self.without: Final = tuple(without)
        self.members: list[Member] = []
        self.name_server_address: Final = f"{network.host(CLIENTS)}:{9876 if network.is_isolated else free_port()}"
        self._settings: Final = SETTINGS | {"namesrvAddr": self.name_server_address} | dict(settings or {})
        self._count: Final = members
        self._has_disks: Final = has_disks
        self._has_buffers: Final = has_buffers
        self._stack: Final = ExitStack()
        self._name_server = ServerProcess(
            "nameserver",
            ["-m", "gantry_nameserver", "--listen", self.name_server_address, "--data", str(directory / "nameserver")],
            "name server listening on", directory,
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"<Group {self.members}>"

    def __getitem__(self, number: int) -> Member:
        return self.members[number - 1]

    def others(self, member: Member) -> list[Member]:
        return [other for other in self.members if other is not member]

    async def __aenter__(self) -> Group:
        for number in range(1, self._count + 1):
            place = self.directory / f"disk-{number}"
            disk = None
            if self._has_disks:
                place.mkdir()
                disk = self._stack.enter_context(loop_disk(place, size_mib=DISK_MIB))
            member = Member(number, self.network, self.directory, disk)
            buffers = {}
            if self._has_buffers:
                buffers["transientStorePoolPath"] = str(self._stack.enter_context(buffer_directory()))
            member.configure(self._settings | buffers, self.without)
            self.members.append(member)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End every process and remove every mount."""
        for member in self.members:
            await member.orders.close()
            await member.kill()
        await self._name_server.kill()
        self._stack.close()

    async def start(self) -> None:
        """Start the name server and the members, which have no role yet."""
        await self._name_server.start()
        await asyncio.gather(*(member.process.start() for member in self.members))

    def settings_of(self, member: Member) -> dict[str, str]:
        """Return the last settings of a member, as written to its file."""
        lines = (self.directory / f"broker-{member.number}.conf").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)

    async def create_topic(self, master: Member) -> None:
        """Create the topic of the load, and wait until the name server knows it."""
        channel = await Channel.connect(master.address)
        fields = CreateTopic(
            topic=TOPIC, default_topic="TBW102", read_queue_nums=len(QUEUES), write_queue_nums=len(QUEUES), perm=6,
            topic_filter_type="SINGLE_TAG", order=False,
        )  # fmt: skip
        command = Command(code=RequestCode.UPDATE_AND_CREATE_TOPIC, ext=fields.write())
        reply = await channel.request(command, 30_000)
        assert reply.code == ResponseCode.SUCCESS, (reply.code, reply.remark)
        await channel.close()
        channel = await Channel.connect(self.name_server_address)
        while True:
            query = Command(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, ext=QueryRoute(topic=TOPIC).write())
            if (await channel.request(query, 30_000)).code == ResponseCode.SUCCESS:
                break
            await asyncio.sleep(POLL_S)
        await channel.close()

    async def stop(self) -> None:
        """Stop all members cleanly, one after the other, the last one first, whichever is the master."""
        for member in reversed(self.members):
            await member.process.stop()


async def reachable(members: Sequence[Member]) -> list[tuple[Member, HaStatus]]:
    """Return the members that answer, with their statuses."""
    found: list[tuple[Member, HaStatus]] = []
    for member in members:
        if member.is_up:
            try:
                found.append((member, await member.status()))
            except OrderError:
                continue
    return found
