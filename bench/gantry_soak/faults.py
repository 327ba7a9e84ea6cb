"""The faults of a soak: a plan that follows from the seed, and what each fault does to the group.

A fault is over when the group is whole again: one master, its slave caught up, all processes running. The time from the
injection until then is marked in the pictures, and its samples are not judged. A group that is not whole within
``WHOLE_TIMEOUT_S`` is a finding.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import struct
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, final

import msgspec
from gantry_bench.errors import BenchmarkFailed

from gantry_cli.local.group_status import LocalMemberStatus
from gantry_client import Admin, ClientError, ClientSettings
from gantry_soak.group import SoakGroup
from gantry_soak.names import group_of, topic_of
from gantry_soak.records import Fault
from gantry_soak.sampling import fetch_text

WHOLE_TIMEOUT_S: Final = 120.0
POLL_S: Final = 0.5
PAUSE_S: Final = 3.0
"""How long a process is suspended: shorter than `failover.after`, so that no other member takes over."""

LONG_PAUSE_S: Final = 9.0
"""A pause after which a slave has taken over."""

DOWN: Final = "12s"
QUIET_START_SHARE: Final = 0.15
"""No fault is injected in this share of the run at its start, in which processes warm up."""

QUIET_END_SHARE: Final = 0.08
PERIOD_S: Final = 150.0
"""A fault begins about every so often."""

PERIOD_S_MIN: Final = 12.0
FAULTS_MIN: Final = 2
HEAL_TIMEOUT_S: Final = 90.0
"""How long a member may take to heal a damaged record that was read."""

WHOLE_FILE_TIMEOUT_S: Final = 200.0
"""How long the load takes at most to fill a file of the log."""

UNIT: Final = struct.Struct(">QIq")
"""Physical offset, size and tag hash of a message."""

HEALED_METRIC: Final = 'gantry_damage_total{outcome="healed"}'


@final
class PlannedFault(msgspec.Struct, frozen=True):
    """When which fault is injected."""

    at_s: float
    name: str


NAMES: Final = (
    "kill-slave", "pause-master", "kill-proxy", "damage-record", "promote", "kill-name-server", "pause-slave",
    "kill-master", "damage-unit", "pause-proxy", "empty-slave", "pause-name-server", "fail-over",
)  # fmt: skip
"""All faults. A short run has the first ones."""


def plan_faults(seed: int, duration_s: float, every_s: float = PERIOD_S) -> list[PlannedFault]:
    """Return the faults of a run in the order of their times: every kind in turn, in another order each time."""
    chance = random.Random(seed)
    start_s, end_s = duration_s * QUIET_START_SHARE, duration_s * (1 - QUIET_END_SHARE)
    period_s = max(PERIOD_S_MIN, min(every_s, (end_s - start_s) / (FAULTS_MIN + 0.5)))
    count = int((end_s - start_s) / period_s)
    names: list[str] = []
    while len(names) < count:
        turn = list(NAMES)
        if names or count >= len(NAMES):
            chance.shuffle(turn)
        names += turn
    return [
        PlannedFault(round(start_s + period_s * (number + 0.2 * chance.random()), 1), names[number])
        for number in range(count)
    ]


def newest_whole_file(folder: Path, flushed: int) -> Path | None:
    """Return the newest file of a log that lies before an offset; None if there is none."""
    return max((one for one in folder.iterdir() if int(one.name) + one.stat().st_size <= flushed), default=None)


class QueueUnit(NamedTuple):
    """A unit of a consume queue, and the message that it points to."""

    physical: int
    size: int
    queue_id: int
    offset: int


def newest_unit(topic_folder: Path, log_file: Path) -> QueueUnit | None:
    """Return the newest unit of a topic that points into a file of the log; None if there is none."""
    start, end = int(log_file.name), int(log_file.name) + log_file.stat().st_size
    found = []
    for path in topic_folder.glob("*/*"):
        data = path.read_bytes()
        for position in range(0, len(data) - UNIT.size + 1, UNIT.size):
            physical, size, _ = UNIT.unpack_from(data, position)
            if size and start <= physical < end:
                offset = (int(path.name) + position) // UNIT.size
                found.append(QueueUnit(physical, size, int(path.parent.name), offset))
    return max(found, default=None)


def is_deleted(path: Path) -> bool:
    """Return whether a file does not exist any more."""
    return not path.exists()


@final
class FaultInjector:
    """Injects faults into a group. Owned by one loop."""

    def __init__(self, group: SoakGroup, chance: random.Random, now_s: Callable[[], float]) -> None:
        self._group: Final = group
        self._chance: Final = chance
        self._now_s: Final = now_s
        self.findings: Final[list[str]] = []
        """What the group did not survive as it must."""
        self._acts: Final[dict[str, Callable[[], Awaitable[str]]]] = {
            "kill-master": lambda: self._kill(self._member(is_master=True).name),
            "kill-slave": lambda: self._kill(self._member(is_master=False).name),
            "kill-proxy": lambda: self._kill("proxy-0"),
            "kill-name-server": lambda: self._kill("nameserver-0"),
            "pause-master": lambda: self._pause(self._member(is_master=True).name, PAUSE_S),
            "pause-slave": lambda: self._pause(self._member(is_master=False).name, PAUSE_S),
            "pause-proxy": lambda: self._pause("proxy-0", PAUSE_S),
            "pause-name-server": lambda: self._pause("nameserver-0", PAUSE_S),
            "fail-over": self._fail_over,
            "promote": self._promote,
            "empty-slave": self._empty_slave,
            "damage-record": self._damage_record,
            "damage-unit": self._damage_unit,
        }
        assert set(self._acts) == set(NAMES), "a fault has no method that injects it"

    async def inject(self, name: str) -> Fault:
        """Inject a fault, and wait until the group is whole again."""
        await self.wait_until_whole("before the next fault")
        start_s = self._now_s()
        target = note = ""
        try:
            target = await self._acts[name]()
        except (BenchmarkFailed, OSError) as error:
            note = f"{error}"
        await self.wait_until_whole(f"after {name}")
        return Fault(
            start_s=round(start_s, 1), end_s=round(self._now_s(), 1), name=name, target=target, note=note
        )  # fmt: skip

    async def wait_until_whole(self, when: str) -> None:
        """Wait until the group is whole; a timeout is a finding."""
        deadline_s, since_ms = self._now_s() + WHOLE_TIMEOUT_S, time.time_ns() // 1_000_000
        while reason := self._group.why_not_whole(since_ms):
            if self._now_s() > deadline_s:
                self.findings.append(f"{when} the group was not whole within {WHOLE_TIMEOUT_S:.0f} s: {reason}")
                return
            await asyncio.sleep(POLL_S)

    def _member(self, *, is_master: bool) -> LocalMemberStatus:
        member = self._group.find_member(is_master=is_master)
        if member is None:
            raise BenchmarkFailed(f"there is no {'master' if is_master else 'slave'}")
        return member

    # -- processes -----------------------------------------------------------------------------------------------------

    def _signal(self, name: str, number: signal.Signals) -> None:
        pid = self._group.processes().get(name)
        if pid is None:
            raise BenchmarkFailed(f"{name} does not run")
        os.kill(pid, number)

    async def _kill(self, name: str) -> str:
        old = self._group.processes().get(name)
        self._signal(name, signal.SIGKILL)
        deadline_s = self._now_s() + WHOLE_TIMEOUT_S
        while self._group.processes().get(name) in (None, old):
            if self._now_s() > deadline_s:
                self.findings.append(f"{name} was not restarted within {WHOLE_TIMEOUT_S:.0f} s after a kill")
                break
            await asyncio.sleep(POLL_S)
        return name

    async def _pause(self, name: str, seconds: float) -> str:
        self._signal(name, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            self._signal(name, signal.SIGCONT)
        return name

    async def _fail_over(self) -> str:
        """Suspend the master, or kill it and keep it down, until the slave has taken over."""
        old = self._member(is_master=True)
        if self._chance.random() < 0.5:
            await self._pause(old.name, LONG_PAUSE_S)
        else:
            await self._group.gantry("kill", old.name, "--down", DOWN)
            await self._wait_for_epoch(old.epoch)
        return old.name

    async def _promote(self) -> str:
        old = self._member(is_master=True)
        target = self._member(is_master=False)
        await self._group.gantry("promote", f"0={target.number}")
        await self._wait_for_epoch(old.epoch)
        return target.name

    async def _wait_for_epoch(self, old: int) -> None:
        deadline_s = self._now_s() + WHOLE_TIMEOUT_S
        while not any(one.role == "MASTER" and one.epoch > old for one in self._group.members()):
            if self._now_s() > deadline_s:
                self.findings.append(f"no master of a newer epoch than {old} within {WHOLE_TIMEOUT_S:.0f} s")
                return
            await asyncio.sleep(POLL_S)

    # -- disks ---------------------------------------------------------------------------------------------------------

    def _store(self, name: str) -> Path:
        return next(Path(one.store) for one in self._group.record.members if one.name == name)

    async def _empty_slave(self) -> str:
        """Remove the store of the slave while it is down; it gets the whole log from the master."""
        slave = self._member(is_master=False)
        await self._group.gantry("kill", slave.name, "--down", DOWN)
        await asyncio.to_thread(shutil.rmtree, self._store(slave.name))
        await asyncio.sleep(POLL_S)
        deadline_s = self._now_s() + WHOLE_TIMEOUT_S
        while not (self._store(slave.name) / "commitlog").is_dir():
            if self._now_s() > deadline_s:
                self.findings.append(f"{slave.name} did not start with an empty disk")
                break
            await asyncio.sleep(POLL_S)
        return slave.name

    async def _damage_record(self) -> str:
        """Change one byte of a record of a member, and read it there; it must be healed from the other member.

        The current file is left out: its records are read from the write buffer. A pass of the scrubber starts once an
        hour, so a read finds the damage.
        """
        member = self._member(is_master=self._chance.random() < 0.5)
        path = await self._wait_for_whole_file(self._store(member.name) / "commitlog")
        before = await asyncio.to_thread(self._healed, member)
        unit = newest_unit(self._store(member.name) / "consumequeue" / topic_of("normal"), path)
        if unit is None:
            raise BenchmarkFailed(f"{path} has no message of the topic {topic_of('normal')}")
        self._flip(path, unit.physical - int(path.name) + unit.size // 2)
        settings = ClientSettings(credentials=self._group.administrator)
        async with Admin(self._group.name_server, client_settings=settings) as admin:
            with suppress(ClientError):  # the read waits for the repair, or skips the message
                await admin.replicas.pull(
                    member.address, topic_of("normal"), unit.queue_id, unit.offset, group=group_of("dead-letters"),
                    messages_max=1,
                )  # fmt: skip
        await self._wait_healed(member, before, path)
        return member.name

    async def _wait_for_whole_file(self, folder: Path) -> Path:
        """Return the newest file of a log that is full and on the disk. Retention may have deleted all but the last."""
        deadline_s = self._now_s() + WHOLE_FILE_TIMEOUT_S
        while True:
            flushed = min((one.flushed or 0 for one in self._group.members()), default=0)
            if (path := newest_whole_file(folder, flushed)) is not None:
                return path
            if self._now_s() > deadline_s:
                raise BenchmarkFailed(f"{folder} had no whole file within {WHOLE_FILE_TIMEOUT_S:.0f} s")
            await asyncio.sleep(POLL_S)

    async def _damage_unit(self) -> str:
        """Change one byte of the newest consume queue files of a member; they are rebuilt from the log."""
        member = self._member(is_master=self._chance.random() < 0.5)
        folder = self._store(member.name) / "consumequeue" / "soak-normal" / "0"
        path = max(folder.iterdir(), key=lambda one: int(one.name), default=None)
        if path is None:
            raise BenchmarkFailed(f"{folder} is empty")
        self._flip(path, 3)
        return member.name

    def _flip(self, path: Path, position: int) -> None:
        with path.open("r+b", buffering=0) as file:
            file.seek(position)
            byte = file.read(1)
            file.seek(position)
            file.write(bytes([byte[0] ^ 0x10]))

    def _healed(self, member: LocalMemberStatus) -> float:
        """Return how many damaged messages the member has healed since its start."""
        text = fetch_text(f"{member.sidecar_url}/metrics", self._group.state.token())
        values = (line.rsplit(" ", 1)[1] for line in text.splitlines() if line.startswith(HEALED_METRIC))
        return sum(map(float, values))

    async def _wait_healed(self, member: LocalMemberStatus, before: float, path: Path) -> None:
        """Wait until the member has healed one more message, or retention has deleted the file."""
        deadline_s = self._now_s() + HEAL_TIMEOUT_S
        while not is_deleted(path):
            try:
                if await asyncio.to_thread(self._healed, member) > before:
                    return
            except OSError:  # the sidecar is slow
                pass
            if self._now_s() > deadline_s:
                self.findings.append(f"{member.name} did not heal a damaged message in {HEAL_TIMEOUT_S:.0f} s")
                return
            await asyncio.sleep(POLL_S)
