"""One look at a group: its status, its pods, its Leases, its events, and what the sidecars say, in one document.

Only the group itself must be there. What else one may not see is left out, and it is said what, and which right lacks.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar, final

from gantry_cli.kube.cluster import Cluster, Object
from gantry_cli.kube.documents import ConditionLook, EventLook, GroupLook, MemberLook, ShardLook
from gantry_cli.kube.faults import Refusal
from gantry_cli.kube.inside import ROLE, STATUS, Answer, Inside
from gantry_cli.kube.naming import EVENTS, LEASES, PODS, brokers_of
from gantry_spec.broker_conf import broker_name
from gantry_spec.cluster_objects import (
    BROKER_CONTAINER,
    COMPONENT_LABEL,
    GROUP_LABEL,
    NAME_SERVER,
    ROLE_LABEL,
    Kind,
    acks_needed,
    member_of,
    member_pod,
)
from gantry_spec.lease import LeaseRecord
from gantry_spec.lease_annotations import BadRecord, record_of
from gantry_spec.ledger import Ledger, behind, ledger_of
from gantry_spec.manifest import ManifestError
from gantry_spec.manifest.annotations import Wanted, asked
from gantry_spec.manifest.group import API_GROUP, BrokerGroup
from gantry_spec.manifest.reading import group_of
from gantry_spec.observed import (
    Member,
    Observed,
    ObservedLease,
    ObservedShard,
    Process,
    Report,
    is_of,
    members_of,
    report_of,
)

EVENTS_KEPT: Final = 20
T = TypeVar("T")


class Seen(NamedTuple):
    """What was found, and what was not."""

    found: Found
    name_servers: list[Object]
    events: list[Object]
    left_out: list[str]


@final
class GroupObserver:
    """Looks at one group, again and again if somebody watches; sidecars are asked at most every ``ask_every_s``."""

    def __init__(self, cluster: Cluster, inside: Inside, *, ask_every_s: float = 0.0) -> None:
        self._cluster: Final = cluster
        self._inside: Final = inside
        self._ask_every_s: Final = ask_every_s
        self._asked_s: float | None = None
        self._answers: Mapping[str, Answer] = {}

    def look(self, document: Object) -> Seen:
        """At everything of the group in ``document``."""
        name, left_out = str(document["metadata"]["name"]), list[str]()
        pods = self._list(PODS, brokers_of(name), left_out)
        servers = self._list(PODS, f"{GROUP_LABEL}={name},{COMPONENT_LABEL}={NAME_SERVER}", left_out)
        leases = self._list(LEASES, f"{GROUP_LABEL}={name}", left_out)
        chosen = f"involvedObject.kind=BrokerGroup,involvedObject.name={name}"
        events = self._list(EVENTS, "", left_out, fields=chosen)
        known = [pod for pod in pods if member_of(name, pod["metadata"]["name"]) is not None]
        answers = {pod: own_answer(name, pod, answer) for pod, answer in self._ask(known).items()}
        found = Found(document, known, {one["metadata"]["name"]: one for one in leases}, answers)
        if self._inside.refused and known:
            left_out.append(f"what the sidecars say now: {self._inside.refused}")
        return Seen(found, servers, events, left_out)

    def _list(self, kind: Kind, labels: str, left_out: list[str], *, fields: str = "") -> list[Object]:
        try:
            return self._cluster.list(kind, labels=labels, fields=fields)
        except Refusal as refusal:
            if refusal.status == 0:
                raise
            if (line := f"{kind.plural}: {refusal.short}") not in left_out:
                left_out.append(line)
            return []

    def _ask(self, pods: list[Object]) -> Mapping[str, Answer]:
        now_s = time.monotonic()
        if self._asked_s is None or now_s - self._asked_s >= self._ask_every_s:
            self._answers, self._asked_s = self._inside.ask(pods), now_s
        return self._answers


def own_answer(group: str, pod: str, answer: Answer) -> Answer:
    """The answer of a pod's sidecar, without its documents where they are of another broker."""
    place, said = member_of(group, pod), answer.said.get(ROLE)
    if place is None or not isinstance(said, dict) or is_of(said, broker_name(group, place.shard), place.member):
        return answer
    return answer._replace(said={}, fault="its sidecar reports another broker")


def group_from(document: Object) -> BrokerGroup | None:
    """What the document says; None if it is nothing that this version of the command can read."""
    try:
        return group_of(document)
    except ManifestError:
        return None


def document_of(cluster: Cluster, seen: Seen) -> GroupLook:
    """For programs."""
    found, document = seen.found, seen.found.document
    metadata, status = document["metadata"], dict_of(document.get("status"))
    group = group_from(document)
    return GroupLook(
        at_ms=time.time_ns() // 1_000_000,
        context=cluster.context,
        namespace=cluster.namespace,
        group=found.name,
        phase=str(status.get("phase") or ""),
        ready=str(status.get("ready") or ""),
        generation=int(metadata.get("generation") or 0),
        observed_generation=int(status.get("observedGeneration") or 0),
        orders={name: text for name, text in annotations_of(document).items() if name.startswith(f"{API_GROUP}/")},
        shards=shards_of(status),
        members=_members(found, group),
        name_servers=_ready_of(seen.name_servers),
        ledgers=_ledgers(found, group),
        conditions=[_condition(one) for one in _dicts(status.get("conditions"))],
        events=_events(seen.events),
        left_out=seen.left_out,
    )


def shards_of(status: Mapping[str, Any]) -> list[ShardLook]:
    """As the operator has written them; an operator of another version may have left something out."""
    found = []
    for one in _dicts(status.get("eachShard")):
        durability, decision = dict_of(one.get("durability")), dict_of(one.get("decision"))
        found.append(
            ShardLook(
                number=int(one.get("number") or 0),
                master=str(one.get("master") or ""),
                epoch=int(one.get("epoch") or 0),
                in_sync=int(one.get("inSync") or 0),
                lag=str(one.get("lag") or "unknown"),
                at_risk=str(durability.get("atRisk") or "unknown"),
                bound=str(durability.get("bound") or ""),
                is_durability_met=durability.get("isMet") is True,
                action=str(decision.get("action") or ""),
                blocked_by=list(map(str, decision.get("blockedBy") or [])),
                if_master_dies=list(map(str, decision.get("ifMasterDies") or [])),
            )
        )
    return sorted(found, key=lambda shard: shard.number)


def _members(found: Found, group: BrokerGroup | None) -> list[MemberLook]:
    pods = {place: pod for pod in found.pods if (place := member_of(found.name, pod["metadata"]["name"])) is not None}
    reports = {place: report_from(found.answers[pod["metadata"]["name"]])
               for place, pod in pods.items() if pod["metadata"]["name"] in found.answers}  # fmt: skip
    lags: dict[tuple[int, int], int | None] = {}
    for shard in {place.shard for place in pods}:
        members = tuple(
            Member(number=place.member, report=reports.get(place)) for place in pods if place.shard == shard
        )
        seen = ObservedShard(number=shard, lease=_lease(found, shard, 0), members=members)
        lags |= {(shard, member): lag for member, lag in behind(seen).items()}
    looks = {place: _member(found, pod, place, reports.get(place), lags.get(place)) for place, pod in pods.items()}
    if group is not None and found.pods:
        for shard in range(group.spec.shards):
            for member in group.spec.members:
                name = member_pod(found.name, shard, member)
                if (place := member_of(found.name, name)) is not None and place not in looks:
                    looks[place] = _missing(name, shard, member)
    return [looks[place] for place in sorted(looks)]


def _member(
    found: Found, pod: Object, place: tuple[int, int], report: Report | None, behind_bytes: int | None
) -> MemberLook:
    name, status = str(pod["metadata"]["name"]), dict_of(pod.get("status"))
    answer = found.answers.get(name)
    said = {} if answer is None else dict_of(answer.said.get(STATUS))
    return MemberLook(
        pod=name,
        shard=place[0],
        number=place[1],
        phase="Terminating" if pod["metadata"].get("deletionTimestamp") else str(status.get("phase") or "Unknown"),
        is_ready=_is_ready(pod),
        restarts=int(container_of(pod, BROKER_CONTAINER).get("restartCount") or 0),
        node=str((pod.get("spec") or {}).get("nodeName") or ""),
        label=str((pod["metadata"].get("labels") or {}).get(ROLE_LABEL) or ""),
        role=said.get("role"),
        epoch=said.get("epoch"),
        wrote=said.get("wrote"),
        committed=said.get("committed"),
        flushed=said.get("flushed"),
        acked=said.get("acked"),
        confirmed=said.get("confirmed"),
        behind_bytes=behind_bytes,
        is_draining=None if report is None else report.is_draining,
        motion=dict_of(said.get("motion")).get("state"),
        readiness=dict_of(said.get("ready")).get("reason"),
        trouble=None if report is None else report.trouble or None,
        fault=None if answer is None else answer.fault or None,
    )


def _missing(name: str, shard: int, number: int) -> MemberLook:
    nothing: dict[str, Any] = dict.fromkeys(
        ("role", "epoch", "wrote", "committed", "flushed", "acked", "confirmed", "behind_bytes", "is_draining",
         "motion", "readiness", "trouble", "fault")
    )  # fmt: skip
    return MemberLook(
        pod=name, shard=shard, number=number, phase="Missing", is_ready=False, restarts=0, node="", label="", **nothing
    )


def _ledgers(found: Found, group: BrokerGroup | None) -> list[Ledger]:
    if group is None or not any(answer.said for answer in found.answers.values()):
        return []
    now_ms = time.monotonic_ns() // 1_000_000
    return [ledger_of(group.spec, shard, now_ms) for shard in observed(group, found).shards]


def _is_ready(pod: Object) -> bool:
    conditions = _dicts(dict_of(pod.get("status")).get("conditions"))
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)


def _ready_of(pods: list[Object]) -> str:
    return f"{sum(map(_is_ready, pods))}/{len(pods)}" if pods else ""


def _condition(one: Mapping[str, Any]) -> ConditionLook:
    return ConditionLook(**{name: str(one.get(name) or "") for name in ("type", "status", "reason", "message")})


def _events(events: Iterable[Object]) -> list[EventLook]:
    found = [
        EventLook(
            at=str(one.get("lastTimestamp") or one.get("eventTime") or one.get("firstTimestamp") or ""),
            type=str(one.get("type") or ""),
            reason=str(one.get("reason") or ""),
            message=str(one.get("message") or ""),
        )
        for one in events
    ]
    return sorted(found, key=lambda event: event.at)[-EVENTS_KEPT:]


def dict_of(value: Any) -> dict[str, Any]:
    """What is a mapping, or else an empty one."""
    return value if isinstance(value, dict) else {}


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


# -- the values that gantry_spec explains ------------------------------------------------------------------------------
# From pods, Leases and what sidecars say to the values that ``gantry_spec`` explains: the operator's view, seen anew.
#
# It is one look without a memory, for people. Nothing is decided by it, so it may know less than the operator: a volume
# is not looked at, and a process runs if the pod's container does.


class Found(NamedTuple):
    """Everything that one look has found of a group."""

    document: Object
    pods: Sequence[Object]
    """Of brokers."""
    leases: Mapping[str, Object]
    """By name."""
    answers: Mapping[str, Answer]
    """By name of pod."""

    @property
    def name(self) -> str:
        return str(self.document["metadata"]["name"])


def observed(group: BrokerGroup, found: Found) -> Observed:
    """As a decision looks at it."""
    seen_ms = time.monotonic_ns() // 1_000_000
    numbers = {place.shard for pod in found.pods if (place := member_of(found.name, pod["metadata"]["name"]))}
    asked = asked_of(found.document)
    shards = [_shard(group, found, number, seen_ms, asked) for number in sorted({*range(group.spec.shards), *numbers})]
    return Observed(
        shards=tuple(shards),
        is_paused=asked.is_paused,
        is_hibernated=asked.is_hibernated,
        generation=group.metadata.generation,
    )


def asked_of(document: Object) -> Wanted:
    """What people ask of the group, as the operator reads it: a fence stands also beside what is misspelled."""
    return asked(annotations_of(document))[0]


def _shard(group: BrokerGroup, found: Found, number: int, seen_ms: int, asked: Wanted) -> ObservedShard:
    pods = {}
    for pod in found.pods:
        place = member_of(found.name, pod["metadata"]["name"])
        if place is not None and place.shard == number:
            pods[place.member] = pod
    wanted_members = group.spec.members if number < group.spec.shards else range(0)
    lease = _lease(found, number, seen_ms)
    record = None if lease is None else lease.record
    numbers = members_of(wanted_members, pods, record)
    return ObservedShard(
        number=number,
        lease=lease,
        members=tuple(_member_value(group, pods.get(one), one, found, record) for one in numbers),
        is_fenced=number in asked.fenced,
    )


def _lease(found: Found, number: int, seen_ms: int) -> ObservedLease | None:
    document = found.leases.get(f"{found.name}-{number}")
    if document is None:
        return None
    try:
        return ObservedLease(record=record_of(annotations_of(document)), seen_ms=seen_ms)
    except BadRecord:
        return None


def _member_value(
    group: BrokerGroup, pod: Object | None, number: int, found: Found, record: LeaseRecord | None
) -> Member:
    acks = None if pod is None else acks_needed(pod)
    acks = group.spec.replication.acks_needed if acks is None else acks
    if pod is None:
        # The pod of a master may have been deleted by force, so its process may still run.
        is_master = record is not None and any(term.master == number for term in record.terms)
        return Member(number=number, process=Process.UNKNOWN if is_master else Process.ABSENT, acks_needed=acks)
    uid = str(pod["metadata"].get("uid", ""))
    answer = found.answers.get(pod["metadata"]["name"])
    report = None if answer is None else report_from(answer, uid)
    return Member(number=number, process=_process(pod), boot_id=uid, acks_needed=acks, report=report)


def report_from(answer: Answer, boot_id: str = "") -> Report | None:
    """What the broker says of itself; None if its sidecar has not got that out of it."""
    said = answer.said.get(ROLE)
    if not isinstance(said, dict):
        return None
    times = {"asked_ms": answer.asked_ms, "answered_ms": answer.answered_ms}
    try:
        return report_of(said, **times, boot_id=boot_id)
    except ValueError:
        return None


def _process(pod: Object) -> Process:
    state = container_of(pod, BROKER_CONTAINER).get("state") or {}
    if "running" in state:
        return Process.RUNNING
    return Process.STOPPED if state else Process.UNKNOWN


def container_of(pod: Object, name: str) -> Object:
    """What kubelet said last of one of its containers."""
    status = pod.get("status") or {}
    every = [*(status.get("containerStatuses") or []), *(status.get("initContainerStatuses") or [])]
    found: Object = next((one for one in every if one.get("name") == name), {})
    return found


def annotations_of(document: Object) -> dict[str, str]:
    """Of any object."""
    return dict((document.get("metadata") or {}).get("annotations") or {})
