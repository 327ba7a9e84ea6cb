"""Observes one group: it combines caches and reports of sidecars into ``ObservedGroup``.

    caches      pods, claims, machines, Leases and the group itself, as watches have reported them last
    sidecars    are queried in each observation, all at the same time, each with its own deadline; a member that does
                not answer keeps its last report, with its age; that of a master also for its topics, where the shard
                is scaled in
    the API     is called only for what the caches do not have: proof that the master of a term does not run, and the
                machine that a volume is bound to

A report counts for the member whose sidecar was queried, if it names this member: the address of a pod may have been
given to another pod meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, final

import msgspec

from gantry_operator.api import NODES, VOLUMES, Kubernetes, Object, ObjectRef, annotations_of, uid_of
from gantry_operator.cache import Cache, ResourceKey
from gantry_operator.clock import Clock
from gantry_operator.errors import ApiError, NotFound, SidecarError, SidecarUnauthorized
from gantry_operator.observe import machines, pods
from gantry_operator.observe.group_objects import GroupObjects, ShardStatefulSets
from gantry_operator.observe.last_report import parse_last_report
from gantry_operator.observe.machines import Machine, machine_of
from gantry_operator.observe.memory import MemberMemory, ShardMemory
from gantry_operator.sidecars import Sidecars
from gantry_spec.broker_conf import broker_name
from gantry_spec.cluster_objects import acks_needed
from gantry_spec.lease import LeaseRecord
from gantry_spec.lease_annotations import InvalidLeaseRecord, record_of
from gantry_spec.manifest.annotations import RESTORE_ID_PREFIX, GroupRequests
from gantry_spec.manifest.group import BrokerGroup
from gantry_spec.observed import (
    EMPTY_FOR_MS,
    Disk,
    Member,
    ObservedGroup,
    ObservedLease,
    ObservedShard,
    Process,
    Report,
    Role,
    is_status_of,
    members_of,
    remaining_messages,
    report_of,
)

log = logging.getLogger(__name__)

TOPICS_NAMED_MAX: Final = 5
"""How many topics a text about the messages that are left names."""

CURRENT: Final = "current"
"""Stands for the present template's hash, which differs from shard to shard."""


@final
class GroupObserver:
    """Observes one group. Owned by the task of the group's loop."""

    def __init__(
        self,
        key: ResourceKey,
        cache: Cache,
        api: Kubernetes,
        sidecars: Sidecars,
        clock: Clock,
        must_restart: Callable[[int, Object], bool] = lambda shard, pod: False,
    ) -> None:
        """``must_restart`` returns whether a pod of the present template has resources that need a restart."""
        self.memory: Final[dict[int, ShardMemory]] = defaultdict(ShardMemory)
        """The memory of each shard, by its number."""

        self.is_denied = False
        """Whether a sidecar rejected the token at the last observation."""

        self.objects: Final = GroupObjects(key, cache)
        self._key: Final = key
        self._cache: Final = cache
        self._api: Final = api
        self._sidecars: Final = sidecars
        self._clock: Final = clock
        self._must_restart: Final = must_restart
        self._volume_hosts: Final[dict[str, list[str]]] = {}

    def __repr__(self) -> str:
        return f"<GroupObserver {'/'.join(self._key)}>"

    # -- one observation -----------------------------------------------------------------------------------------------

    async def observe(self, group: BrokerGroup, requests: GroupRequests, token: str) -> ObservedGroup:
        """Observe all shards of the group now."""
        self.is_denied = False
        numbers = sorted({*range(group.spec.shards), *self.objects.shards()})
        shards = await asyncio.gather(*(self._shard(group, requests, number, token) for number in numbers))
        return ObservedGroup(
            shards=tuple(shards),
            template=CURRENT,
            is_paused=requests.is_paused,
            is_hibernated=requests.is_hibernated,
            generation=group.metadata.generation,
        )

    async def _shard(self, group: BrokerGroup, requests: GroupRequests, number: int, token: str) -> ObservedShard:
        """Observe one shard: its Lease, its members, and the requests for it."""
        memory = self.memory[number]
        lease = self._lease(number, memory)
        record = None if lease is None else lease.record
        stateful_sets = self.objects.stateful_sets(number)
        present = {place.member for place in self.objects.pod_places(number)}
        wanted_members = group.spec.members if number < group.spec.shards else ()
        numbers = members_of(wanted_members, {*stateful_sets.members, *present}, record)
        await asyncio.gather(*(self._request_report(number, member, memory, token) for member in numbers))
        await self._confirm_stopped(number, memory, lease)
        members = [await self._member(group, number, member, memory, stateful_sets, record) for member in numbers]
        has_no_messages, left = await self._check_empty(group, number, token)
        return ObservedShard(
            number=number,
            lease=lease,
            members=tuple(members),
            last_report=memory.last_report,
            request=requests.request(number),
            replace_disks=await self._disks_to_replace(number, requests, members),
            restore=f"{RESTORE_ID_PREFIX}{number}" if number in requests.restored_shards else "",
            is_fenced=number in requests.fenced_shards,
            is_scaled_to_zero=not stateful_sets.members,
            is_empty=has_no_messages,
            remaining_text=left,
        )

    def _lease(self, shard: int, memory: ShardMemory) -> ObservedLease | None:
        """Return the shard's Lease by the cache; None if its record is invalid."""
        document = self.objects.lease(shard)
        if document is None:
            return memory.observe_lease("", None, self._clock.now_ms())
        try:
            record = record_of(annotations_of(document))
        except InvalidLeaseRecord as error:
            log.error(
                "invalid Lease record; the master role is not moved until it is repaired",
                extra={"shard": shard, "reason": str(error)},
            )
            return None
        memory.take_last_report(parse_last_report(annotations_of(document), self._clock))
        return memory.observe_lease(uid_of(document), record, self._clock.now_ms())

    # -- members -------------------------------------------------------------------------------------------------------

    async def _request_report(self, shard: int, member: int, memory: ShardMemory, token: str) -> None:
        """Request a report from a member's sidecar. A member that does not answer keeps its last report."""
        pod, peer = self.objects.pod(shard, member), self.objects.peer(shard, member, token)
        if pod is None or peer is None:
            return
        asked_ms = self._clock.now_ms()
        try:
            answer = await self._sidecars.status(peer)
            answered_ms = self._clock.now_ms()
            report = report_of(answer, asked_ms=asked_ms, answered_ms=answered_ms, boot_id=uid_of(pod))
        except SidecarUnauthorized:
            self.is_denied = True
            return
        except (SidecarError, ValueError) as error:
            log.debug("sidecar did not report", extra={"shard": shard, "member": member, "reason": str(error)})
            return
        if not is_status_of(answer, broker_name(self._key[1], shard), member):
            log.warning("report of another broker ignored", extra={"shard": shard, "member": member})
            return
        memory.take_report(member, report)

    async def _confirm_stopped(self, shard: int, memory: ShardMemory, lease: ObservedLease | None) -> None:
        """Read the pods of masters that seem to be stopped from the API server itself, once for each observed Lease."""
        record = None if lease is None else lease.record
        for number in sorted({term.master for term in record.terms} if record is not None else ()):
            known = memory.member(number)
            if lease is None or known.confirmed_ms >= lease.seen_ms or not self._seems_stopped(shard, number):
                continue
            ref, asked_ms = self.objects.pod_ref(shard, number), self._clock.now_ms()
            before = self._cache.get(ref)
            try:
                self._cache.put(await self._api.get(ref))
            except NotFound:
                if before is not None:
                    self._cache.apply_event("DELETED", before)
            except ApiError:
                continue
            known.confirm(asked_ms)

    def _seems_stopped(self, shard: int, member: int) -> bool:
        """Return whether, by the cache, a member has no pod, or one whose process does not run."""
        pod = self.objects.pod(shard, member)
        return pod is None or pods.process_state_of(pod, self.objects.machine(pod)).process is Process.STOPPED

    async def _member(
        self,
        group: BrokerGroup,
        shard: int,
        number: int,
        memory: ShardMemory,
        stateful_sets: ShardStatefulSets,
        record: LeaseRecord | None,
    ) -> Member:
        known, pod, now_ms = memory.member(number), self.objects.pod(shard, number), self._clock.now_ms()
        machine = Machine() if pod is None else self.objects.machine(pod)
        process_state = self.objects.process_state(shard, number, pod, machine, stateful_sets, record)
        boot_id = known.boot_id if pod is None else uid_of(pod)
        known.take_process(process_state, boot_id, now_ms)
        disk, disk_id = await self._disk(shard, number, process_state)
        known.take_disk(disk, disk_id, now_ms)
        acks = None if pod is None else acks_needed(pod)
        return Member(
            number=number,
            process=known.correct_process(process_state.process),
            process_asked_ms=known.confirmed_ms,
            stopped_by_ms=known.stopped_by_ms,
            boot_id=boot_id,
            started_by_ms=known.started_by_ms,
            disk_id=disk_id,
            template=self._template_of(shard, pod, stateful_sets),
            acks_needed=group.spec.replication.acks_needed if acks is None else acks,
            disk=disk,
            disk_lost_since_ms=known.disk_lost_since_ms,
            is_leaving=pod is not None and pods.is_leaving(pod, machine),
            report=known.report,
        )

    def _template_of(self, shard: int, pod: Object | None, stateful_sets: ShardStatefulSets) -> str:
        """Return ``CURRENT``, or the hash of the template from which an outdated pod was created."""
        template = "" if pod is None else pods.template_hash_of(pod)
        if pod is None or stateful_sets.template == "":
            return CURRENT
        if template == stateful_sets.template:
            return f"{template} with other resources" if self._must_restart(shard, pod) else CURRENT
        return template

    async def _disk(self, shard: int, number: int, process_state: pods.ProcessState) -> tuple[Disk, str]:
        claim = self.objects.claim(shard, number)
        if claim is None:
            return Disk.UNKNOWN, ""
        home = None
        if process_state.process is not Process.RUNNING:
            home = await self._machine_of_volume(claim)
        return machines.disk_of(claim, home), uid_of(claim)

    async def _machine_of_volume(self, claim: Object) -> Machine | None:
        """Return the machine that a volume is bound to, if there is just one. A deleted Node counts as off."""
        host = await self._host_of_volume(claim)
        if host is None:
            return None
        node = machines.node_of_host(self._cache.of_kind(NODES), host)
        return Machine(is_reachable=False, is_off=True) if node is None else machine_of(node)

    async def _host_of_volume(self, claim: Object) -> str | None:
        """Return the host name of the machine that a volume is bound to, if it is known and there is just one."""
        name = (claim.get("spec") or {}).get("volumeName")
        if not name or not self._cache.can_read_nodes:
            return None
        if name not in self._volume_hosts:
            try:
                self._volume_hosts[name] = machines.hosts_of(await self._api.get(ObjectRef(VOLUMES, "", name)))
            except ApiError:
                return None
        hosts = self._volume_hosts[name]
        return hosts[0] if len(hosts) == 1 else None

    async def _disks_to_replace(
        self, shard: int, requests: GroupRequests, members: Iterable[Member]
    ) -> tuple[int, ...]:
        """Return the members whose lost disk may be replaced: at a user's request, or with a machine out of service."""
        given_up = {number for lost_shard, number in requests.lost_disks if lost_shard == shard}
        lost = [member.number for member in members if member.disk is Disk.LOST]
        return tuple([one for one in lost if one in given_up or await self._is_out_of_service(shard, one)])

    async def _is_out_of_service(self, shard: int, number: int) -> bool:
        """Return whether the machine of a member has the taint that declares it to be off.

        Kubernetes deletes the pods of such a machine. The pod that takes their place is on no machine, but its volume
        is still bound to this one. A Node that was deleted declares nothing.
        """
        pod, claim = self.objects.pod(shard, number), self.objects.claim(shard, number)
        if pod is not None and self.objects.machine(pod).is_off:
            return True
        host = None if claim is None else await self._host_of_volume(claim)
        node = None if host is None else machines.node_of_host(self._cache.of_kind(NODES), host)
        return node is not None and machine_of(node).is_off

    async def _check_empty(self, group: BrokerGroup, shard: int, token: str) -> tuple[bool | None, str]:
        """Return whether a shard that is scaled away is empty, and has been for a while; and a text on what is left."""
        if shard < group.spec.shards:
            return None, ""
        memory = self.memory[shard]
        master = _master_of(memory.members)
        peer = None if master is None else self.objects.peer(shard, master[0], token)
        if master is None or peer is None:
            return None, "no master can be queried"
        try:
            answer = await self._sidecars.topics(peer)
        except SidecarError:
            return None, "its master does not report what is left"
        is_empty = has_no_messages(answer)
        if not is_empty or master[1].wrote is None:
            memory.reset_empty()
            return is_empty, remaining_text(answer)
        is_quiet = memory.record_empty(master[1].wrote, self._clock.now_ms(), EMPTY_FOR_MS)
        return is_quiet, f"no messages are left, and none must arrive for {EMPTY_FOR_MS // 1000} s"


class TopicMessages(msgspec.Struct, frozen=True):
    """The fields of a topic's row that the operator reads."""

    name: str
    messages: int
    """The number of messages of the topic."""


class TopicsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a sidecar's topics document that the operator reads."""

    source: str
    """The origin of the figures: `broker`, or `disk` where the broker does not answer and its files were read."""

    left_out: int
    """How many topics the document omits, because it has too many."""

    topics: list[TopicMessages]
    system_messages: dict[str, int] | None = None
    """The number of messages of each system topic; None from a sidecar that does not report it."""


def has_no_messages(answer: Mapping[str, Any]) -> bool | None:
    """Return whether a shard has no messages, by a sidecar's answer; None if incomplete, or not from the broker."""
    messages = _messages_in(answer)
    return None if messages is None else not remaining_messages(messages)


def remaining_text(answer: Mapping[str, Any]) -> str:
    """Return a text on how many messages are left, and in which topics."""
    messages = _messages_in(answer)
    if messages is None:
        return "its master does not report what is left"
    left = remaining_messages(messages)
    names = ", ".join(sorted(left)[:TOPICS_NAMED_MAX])
    return f"{sum(left.values())} messages of {len(left)} topics: {names}" if left else ""


def _messages_in(answer: Mapping[str, Any]) -> dict[str, int] | None:
    """Return how many messages each topic has; None if unknown, as with a sidecar that reports no system topics."""
    try:
        document = msgspec.convert(answer, TopicsAnswer)
    except msgspec.ValidationError:
        return None
    if document.source != "broker" or document.left_out or document.system_messages is None:
        return None
    return {topic.name: topic.messages for topic in document.topics} | document.system_messages


def _master_of(members: Mapping[int, MemberMemory]) -> tuple[int, Report] | None:
    """Return the number and the report of the member that reports the master role in the newest epoch."""
    reports = [(number, known.report) for number, known in members.items() if known.report is not None]
    masters = [(number, report) for number, report in reports if report.role is Role.MASTER]
    return max(masters, key=lambda one: one[1].epoch, default=None)
