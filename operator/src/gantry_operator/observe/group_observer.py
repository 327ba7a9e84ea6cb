"""Observes one group: caches and sidecars put together into ``Observed``. All sidecars are asked at the same time.

    caches      pods, claims, machines, Leases, the group itself: what watches have reported last
    sidecars    asked now, each with its own deadline; a member that does not answer keeps its last report, with its age
    the API     asked only for what a cache cannot prove: that the master of a term does not run

A report counts for the member at whose pod it was asked and which it names: a pod's address may have been given to
another pod meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final, final

import msgspec

from gantry_operator.api import NODES, VOLUMES, Kubernetes, Object, Place, annotations_of, uid_of
from gantry_operator.cache import Cache, ResourceKey
from gantry_operator.clock import Clock
from gantry_operator.errors import ApiError, Gone, SidecarDenied, SidecarError
from gantry_operator.observe import machines, pods
from gantry_operator.observe.group_objects import GroupObjects, Sets
from gantry_operator.observe.last_word import last_word_of
from gantry_operator.observe.machines import Machine, machine_of
from gantry_operator.observe.memory import MemberMemory, ShardMemory
from gantry_operator.sidecars import Sidecars
from gantry_spec.broker_conf import broker_name
from gantry_spec.cluster_objects import acks_needed
from gantry_spec.lease import LeaseRecord
from gantry_spec.lease_annotations import BadRecord, record_of
from gantry_spec.manifest.annotations import RESTORING, Wanted
from gantry_spec.manifest.group import BrokerGroup
from gantry_spec.observed import (
    QUIET_MS,
    Disk,
    Member,
    Observed,
    ObservedLease,
    ObservedShard,
    Process,
    Report,
    Role,
    is_of,
    members_of,
    remaining_messages,
    report_of,
)

log = logging.getLogger(__name__)

TOPICS_NAMED_MAX: Final = 5

CURRENT: Final = "current"
"""Stands for the hash of what members should be started with; it is another one in each shard."""


@final
class GroupObserver:
    """Owned by the task of the group's loop."""

    def __init__(self, key: ResourceKey, cache: Cache, api: Kubernetes, sidecars: Sidecars, clock: Clock) -> None:
        self.memory: Final[dict[int, ShardMemory]] = defaultdict(ShardMemory)
        """By shard."""

        self.is_denied = False
        """Whether a sidecar did not know our token at the last observation."""

        self.objects: Final = GroupObjects(key, cache)
        self._key: Final = key
        self._cache: Final = cache
        self._api: Final = api
        self._sidecars: Final = sidecars
        self._clock: Final = clock
        self._homes: Final[dict[str, list[str]]] = {}

    def __repr__(self) -> str:
        return f"<GroupObserver {'/'.join(self._key)}>"

    # -- one observation -----------------------------------------------------------------------------------------------

    async def observe(self, group: BrokerGroup, wanted: Wanted, token: str) -> Observed:
        """Observe everything now."""
        self.is_denied = False
        numbers = sorted({*range(group.spec.shards), *self.objects.shards()})
        shards = await asyncio.gather(*(self._shard(group, wanted, number, token) for number in numbers))
        return Observed(
            shards=tuple(shards),
            template=CURRENT,
            is_paused=wanted.is_paused,
            is_hibernated=wanted.is_hibernated,
            generation=group.metadata.generation,
        )

    async def _shard(self, group: BrokerGroup, wanted: Wanted, number: int, token: str) -> ObservedShard:
        memory = self.memory[number]
        lease = self._lease(number, memory)
        record = None if lease is None else lease.record
        sets = self.objects.sets(number)
        present = {place.member for place in self.objects.places(number)}
        wanted_members = group.spec.members if number < group.spec.shards else ()
        numbers = members_of(wanted_members, {*sets.wanted, *present}, record)
        await asyncio.gather(*(self._ask(number, member, memory, token) for member in numbers))
        await self._confirm(number, memory, lease)
        members = [await self._member(group, number, member, memory, sets, record) for member in numbers]
        holds_nothing, left = await self._holds_nothing(group, number, token)
        return ObservedShard(
            number=number,
            lease=lease,
            members=tuple(members),
            last_word=memory.last_word,
            request=wanted.request(number),
            replace_disks=tuple(self._given_up(number, wanted, members)),
            restore=f"{RESTORING}{number}" if number in wanted.restored else "",
            is_fenced=number in wanted.fenced,
            is_asleep=not sets.wanted,
            holds_nothing=holds_nothing,
            left=left,
        )

    def _lease(self, shard: int, memory: ShardMemory) -> ObservedLease | None:
        document = self.objects.lease(shard)
        if document is None:
            return memory.lease("", None, self._clock.now_ms())
        try:
            record = record_of(annotations_of(document))
        except BadRecord as error:
            log.error(
                "Lease holds no valid record; shard is observed without one",
                extra={"shard": shard, "reason": str(error)},
            )
            return None
        memory.take_last_word(last_word_of(annotations_of(document), self._clock))
        return memory.lease(uid_of(document), record, self._clock.now_ms())

    # -- members -------------------------------------------------------------------------------------------------------

    async def _ask(self, shard: int, member: int, memory: ShardMemory, token: str) -> None:
        """Ask its sidecar. A member that does not answer keeps its last report."""
        pod, peer = self.objects.pod(shard, member), self.objects.peer(shard, member, token)
        if pod is None or peer is None:
            return
        asked_ms = self._clock.now_ms()
        try:
            answer = await self._sidecars.status(peer)
            answered_ms = self._clock.now_ms()
            report = report_of(answer, asked_ms=asked_ms, answered_ms=answered_ms, boot_id=uid_of(pod))
        except SidecarDenied:
            self.is_denied = True
            return
        except (SidecarError, ValueError) as error:
            log.debug("sidecar did not report", extra={"shard": shard, "member": member, "reason": str(error)})
            return
        if not is_of(answer, broker_name(self._key[1], shard), member):
            log.warning("report of another broker ignored", extra={"shard": shard, "member": member})
            return
        memory.take_report(member, report)

    async def _confirm(self, shard: int, memory: ShardMemory, lease: ObservedLease | None) -> None:
        """Ask the API server itself about masters that seem to be stopped, once after the Lease was observed."""
        record = None if lease is None else lease.record
        for number in sorted({term.master for term in record.terms} if record is not None else ()):
            known = memory.member(number)
            if lease is None or known.confirmed_ms >= lease.seen_ms or not self._seems_stopped(shard, number):
                continue
            place, asked_ms = self.objects.pod_place(shard, number), self._clock.now_ms()
            before = self._cache.get(place)
            try:
                self._cache.put(await self._api.get(place))
            except Gone:
                if before is not None:
                    self._cache.take("DELETED", before)
            except ApiError:
                continue
            known.confirm(asked_ms)

    def _seems_stopped(self, shard: int, member: int) -> bool:
        pod = self.objects.pod(shard, member)
        return pod is None or pods.life_of(pod, self.objects.machine(pod)).process is Process.STOPPED

    async def _member(
        self, group: BrokerGroup, shard: int, number: int, memory: ShardMemory, sets: Sets, record: LeaseRecord | None
    ) -> Member:
        known, pod, now_ms = memory.member(number), self.objects.pod(shard, number), self._clock.now_ms()
        machine = Machine() if pod is None else self.objects.machine(pod)
        life = self.objects.life(shard, number, pod, machine, sets, record)
        boot_id = known.boot_id if pod is None else uid_of(pod)
        known.take_process(life, boot_id, now_ms)
        disk, disk_id = await self._disk(shard, number, life)
        known.take_disk(disk, disk_id, now_ms)
        template = "" if pod is None else pods.template_of(pod)
        acks = None if pod is None else acks_needed(pod)
        return Member(
            number=number,
            process=known.believed(life.process),
            process_asked_ms=known.confirmed_ms,
            stopped_by_ms=known.stopped_by_ms,
            boot_id=boot_id,
            started_by_ms=known.started_by_ms,
            disk_id=disk_id,
            template=CURRENT if pod is None or sets.template in ("", template) else template,
            acks_needed=group.spec.replication.acks_needed if acks is None else acks,
            disk=disk,
            disk_lost_since_ms=known.disk_lost_since_ms,
            is_leaving=pod is not None and pods.is_leaving(pod, machine),
            report=known.report,
        )

    async def _disk(self, shard: int, number: int, life: pods.Life) -> tuple[Disk, str]:
        claim = self.objects.claim(shard, number)
        if claim is None:
            return Disk.UNKNOWN, ""
        home = None
        if life.process is not Process.RUNNING:
            home = await self._home(claim)
        return machines.disk_of(claim, home), uid_of(claim)

    async def _home(self, claim: Object) -> Machine | None:
        """The machine that a volume is bound to, if there is just one. A machine that no longer exists is off."""
        name = (claim.get("spec") or {}).get("volumeName")
        if not name or not self._cache.knows_machines:
            return None
        if name not in self._homes:
            try:
                self._homes[name] = machines.machines_of(await self._api.get(Place(VOLUMES, "", name)))
            except ApiError:
                return None
        homes = self._homes[name]
        if len(homes) != 1:
            return None
        node = self._cache.get(Place(NODES, "", homes[0]))
        return Machine(is_reachable=False, is_off=True) if node is None else machine_of(node)

    def _given_up(self, shard: int, wanted: Wanted, members: Iterable[Member]) -> Iterable[int]:
        """Disks that a person has given up, or with a machine that was declared out of service."""
        given_up = {number for place, number in wanted.given_up if place == shard}
        for member in members:
            pod = self.objects.pod(shard, member.number)
            is_off = pod is not None and self.objects.machine(pod).is_off
            if member.disk is Disk.LOST and (member.number in given_up or is_off):
                yield member.number

    async def _holds_nothing(self, group: BrokerGroup, shard: int, token: str) -> tuple[bool | None, str]:
        """Whether a shard that is scaled away has no message of a user, and got none for a while; and what is left."""
        if shard < group.spec.shards:
            return None, ""
        memory = self.memory[shard]
        master = _master_of(memory.members)
        peer = None if master is None else self.objects.peer(shard, master[0], token)
        if master is None or peer is None:
            return None, "nobody can be asked"
        try:
            answer = await self._sidecars.topics(peer)
        except SidecarError:
            return None, "its master does not say what is left"
        is_empty = holds_nothing(answer)
        if not is_empty or master[1].wrote is None:
            memory.reset_empty()
            return is_empty, left_text(answer)
        is_quiet = memory.is_empty(master[1].wrote, self._clock.now_ms(), QUIET_MS)
        return is_quiet, f"nothing is left, and nothing must come for {QUIET_MS // 1000} s"


class TopicMessages(msgspec.Struct, frozen=True):
    """The part of a topic's row that is read here."""

    name: str
    messages: int


class TopicsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a sidecar's document of topics that are read here."""

    source: str
    left_out: int
    topics: list[TopicMessages]
    system_messages: dict[str, int] | None = None


def holds_nothing(answer: Mapping[str, Any]) -> bool | None:
    """Whether a shard has no message, by a sidecar's document; None if it is incomplete or not from the broker."""
    messages = _messages_in(answer)
    return None if messages is None else not remaining_messages(messages)


def left_text(answer: Mapping[str, Any]) -> str:
    """The same for people: how many messages are left, and of which topics."""
    messages = _messages_in(answer)
    if messages is None:
        return "its master does not say what is left"
    left = remaining_messages(messages)
    names = ", ".join(sorted(left)[:TOPICS_NAMED_MAX])
    return f"{sum(left.values())} messages of {len(left)} topics: {names}" if left else ""


def _messages_in(answer: Mapping[str, Any]) -> dict[str, int] | None:
    """How many messages each topic has; None if that is unknown, as with a sidecar that reports no system topics."""
    try:
        found = msgspec.convert(answer, TopicsAnswer)
    except msgspec.ValidationError:
        return None
    if found.source != "broker" or found.left_out or found.system_messages is None:
        return None
    return {topic.name: topic.messages for topic in found.topics} | found.system_messages


def _master_of(members: Mapping[int, MemberMemory]) -> tuple[int, Report] | None:
    reports = [(number, known.report) for number, known in members.items() if known.report is not None]
    masters = [(number, report) for number, report in reports if report.role is Role.MASTER]
    return max(masters, key=lambda one: one[1].epoch, default=None)
