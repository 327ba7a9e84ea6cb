"""Observes a group: its status, pods, Leases, events, and the answers of its sidecars, combined in one document.

Only the group itself must be readable. Objects that the user may not read are left out, with a note that names them and
the missing right.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar, final

from gantry_cli.kube.api_errors import ApiError
from gantry_cli.kube.cluster import Cluster, Object
from gantry_cli.kube.documents import (
    ClusterGroupStatus,
    ClusterMemberStatus,
    ClusterProxyStatus,
    ClusterShardStatus,
    GroupCondition,
    GroupEvent,
)
from gantry_cli.kube.naming import EVENTS, LEASES, PODS, broker_selector
from gantry_cli.kube.sidecars import ROLE, STATUS, Answer, SidecarClient
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
from gantry_spec.lease_annotations import InvalidLeaseRecord, record_of
from gantry_spec.ledger import Ledger, bytes_behind, ledger_of
from gantry_spec.manifest import ManifestError
from gantry_spec.manifest.annotations import GroupRequests, read_requests
from gantry_spec.manifest.group import API_GROUP, BrokerGroup
from gantry_spec.manifest.reading import group_of
from gantry_spec.observed import (
    Member,
    ObservedGroup,
    ObservedLease,
    ObservedShard,
    Process,
    Report,
    is_status_of,
    members_of,
    report_of,
)
from gantry_status.former_names import LOOP_STATES

EVENTS_KEPT: Final = 20
"""How many of the latest events a document has."""

T = TypeVar("T")


class Observation(NamedTuple):
    """Everything that was observed of a group, and what was left out."""

    objects: GroupObjects
    name_servers: list[Object]
    events: list[Object]
    left_out: list[str]
    """What could not be read, and why, for people."""


@final
class GroupObserver:
    """Observes one group, once or repeatedly; sidecars are queried at most every ``request_interval_s`` seconds."""

    def __init__(self, cluster: Cluster, sidecars: SidecarClient, *, request_interval_s: float = 0.0) -> None:
        self._cluster: Final = cluster
        self._sidecars: Final = sidecars
        self._request_interval_s: Final = request_interval_s
        self._asked_s: float | None = None
        self._answers: Mapping[str, Answer] = {}

    def observe(self, document: Object) -> Observation:
        """Observe the objects, events and sidecars of the group in ``document``."""
        name, left_out = str(document["metadata"]["name"]), list[str]()
        pods = self._list(PODS, broker_selector(name), left_out)
        servers = self._list(PODS, f"{GROUP_LABEL}={name},{COMPONENT_LABEL}={NAME_SERVER}", left_out)
        leases = self._list(LEASES, f"{GROUP_LABEL}={name}", left_out)
        chosen = f"involvedObject.kind=BrokerGroup,involvedObject.name={name}"
        events = self._list(EVENTS, "", left_out, fields=chosen)
        known = [pod for pod in pods if member_of(name, pod["metadata"]["name"]) is not None]
        answers = {pod: check_answer(name, pod, answer) for pod, answer in self._ask(known).items()}
        objects = GroupObjects(document, known, {one["metadata"]["name"]: one for one in leases}, answers)
        if self._sidecars.refusal_reason and known:
            left_out.append(f"the present answers of sidecars: {self._sidecars.refusal_reason}")
        return Observation(objects, servers, events, left_out)

    def _list(self, kind: Kind, labels: str, left_out: list[str], *, fields: str = "") -> list[Object]:
        try:
            return self._cluster.list(kind, labels=labels, fields=fields)
        except ApiError as error:
            if error.status == 0:
                raise
            if (line := f"{kind.plural}: {error.short}") not in left_out:
                left_out.append(line)
            return []

    def _ask(self, pods: list[Object]) -> Mapping[str, Answer]:
        now_s = time.monotonic()
        if self._asked_s is None or now_s - self._asked_s >= self._request_interval_s:
            self._answers, self._asked_s = self._sidecars.ask(pods), now_s
        return self._answers


def check_answer(group: str, pod: str, answer: Answer) -> Answer:
    """Return the answer of a pod's sidecar; without its documents if they are those of another broker."""
    place, document = member_of(group, pod), answer.documents.get(ROLE)
    if place is None or not isinstance(document, dict):
        return answer
    if is_status_of(document, broker_name(group, place.shard), place.member):
        return answer
    return answer._replace(documents={}, fault="its sidecar reports another broker")


def group_from(document: Object) -> BrokerGroup | None:
    """Return the group of an object; None if this version cannot parse it."""
    try:
        return group_of(document)
    except ManifestError:
        return None


def document_of(cluster: Cluster, observation: Observation) -> ClusterGroupStatus:
    """Return the document of an observation."""
    objects, document = observation.objects, observation.objects.document
    metadata, status = document["metadata"], dict_of(document.get("status"))
    group = group_from(document)
    return ClusterGroupStatus(
        at_ms=time.time_ns() // 1_000_000,
        context=cluster.context,
        namespace=cluster.namespace,
        group=objects.name,
        phase=str(status.get("phase") or ""),
        ready=str(status.get("ready") or ""),
        generation=int(metadata.get("generation") or 0),
        observed_generation=max(0, int(status.get("observedGeneration") or 0)),  # -1: no operator has observed it
        orders={name: text for name, text in annotations_of(document).items() if name.startswith(f"{API_GROUP}/")},
        shards=shards_of(status),
        members=_members(objects, group),
        name_servers=_ready_of(observation.name_servers),
        proxies=proxies_of(status),
        ledgers=_ledgers(objects, group),
        conditions=[_condition(one) for one in _dicts(status.get("conditions"))],
        events=_events(observation.events),
        left_out=observation.left_out,
    )


def shards_of(status: Mapping[str, Any]) -> list[ClusterShardStatus]:
    """Return the shards of a group's status. Fields that an operator of another version does not write get defaults.

    An operator of an earlier version writes ``bound`` instead of ``bottleneck``.
    """
    shards = []
    for one in _dicts(status.get("eachShard")):
        durability, decision = dict_of(one.get("durability")), dict_of(one.get("decision"))
        shards.append(
            ClusterShardStatus(
                number=int(one.get("number") or 0),
                master=str(one.get("master") or ""),
                epoch=int(one.get("epoch") or 0),
                in_sync=int(one.get("inSync") or 0),
                lag=str(one.get("lag") or "unknown"),
                election_loss=str(one.get("electionLoss") or ""),
                fence=None if one.get("fence") is None else str(one["fence"]),
                at_risk=str(durability.get("atRisk") or "unknown"),
                bottleneck=str(durability.get("bottleneck") or durability.get("bound") or ""),
                is_durability_met=durability.get("isMet") is True,
                action=str(decision.get("action") or ""),
                blocked_by=list(map(str, decision.get("blockedBy") or [])),
                if_master_dies=list(map(str, decision.get("ifMasterDies") or [])),
            )
        )
    return sorted(shards, key=lambda shard: shard.number)


def proxies_of(status: Mapping[str, Any]) -> ClusterProxyStatus | None:
    """Return the proxies in a group's status; None if it has none, or if an operator without proxies wrote it."""
    proxy = dict_of(status.get("proxy"))
    if not proxy.get("endpoint"):
        return None
    return ClusterProxyStatus(
        desired=int(proxy.get("desired") or 0),
        ready=int(proxy.get("ready") or 0),
        updated=int(proxy.get("updated") or 0),
        endpoint=str(proxy["endpoint"]),
        external_endpoint=str(proxy.get("externalEndpoint") or ""),
    )


def _members(objects: GroupObjects, group: BrokerGroup | None) -> list[ClusterMemberStatus]:
    """Return all brokers of the group, also those without a pod."""
    pods = {
        place: pod for pod in objects.pods if (place := member_of(objects.name, pod["metadata"]["name"])) is not None
    }
    reports = {place: report_from(objects.answers[pod["metadata"]["name"]])
               for place, pod in pods.items() if pod["metadata"]["name"] in objects.answers}  # fmt: skip
    lags: dict[tuple[int, int], int | None] = {}
    for number in {place.shard for place in pods}:
        values = tuple(
            Member(number=place.member, report=reports.get(place)) for place in pods if place.shard == number
        )
        shard_value = ObservedShard(number=number, lease=_lease(objects, number, 0), members=values)
        lags |= {(number, member): lag for member, lag in bytes_behind(shard_value).items()}
    members = {place: _member(objects, pod, place, reports.get(place), lags.get(place)) for place, pod in pods.items()}
    if group is not None and objects.pods:
        for shard in range(group.spec.shards):
            for member in group.spec.members:
                name = member_pod(objects.name, shard, member)
                if (place := member_of(objects.name, name)) is not None and place not in members:
                    members[place] = _missing(name, shard, member)
    return [members[place] for place in sorted(members)]


def _member(
    objects: GroupObjects, pod: Object, place: tuple[int, int], report: Report | None, behind_bytes: int | None
) -> ClusterMemberStatus:
    """Return one broker, by its pod and its sidecar's answer."""
    name, status = str(pod["metadata"]["name"]), dict_of(pod.get("status"))
    answer = objects.answers.get(name)
    document = {} if answer is None else dict_of(answer.documents.get(STATUS))
    return ClusterMemberStatus(
        pod=name,
        shard=place[0],
        number=place[1],
        phase="Terminating" if pod["metadata"].get("deletionTimestamp") else str(status.get("phase") or "Unknown"),
        is_ready=_is_ready(pod),
        restarts=int(container_of(pod, BROKER_CONTAINER).get("restartCount") or 0),
        node=str((pod.get("spec") or {}).get("nodeName") or ""),
        label=str((pod["metadata"].get("labels") or {}).get(ROLE_LABEL) or ""),
        role=document.get("role"),
        epoch=document.get("epoch"),
        wrote=document.get("wrote"),
        committed=document.get("committed"),
        flushed=document.get("flushed"),
        acked=document.get("acked"),
        confirmed=document.get("confirmed"),
        behind_bytes=behind_bytes,
        is_draining=None if report is None else report.is_draining,
        loop_state=loop_state_of(document),
        readiness=dict_of(document.get("ready")).get("reason"),
        problem=None if report is None else report.problem or None,
        fault=None if answer is None else answer.fault or None,
    )


def loop_state_of(document: Mapping[str, Any]) -> str | None:
    """Return the state of the event loop in a sidecar's status. Sidecars of earlier versions use former names."""
    state = dict_of(document.get("loop_state") or document.get("motion")).get("state")
    return None if state is None else LOOP_STATES.get(str(state), str(state))


def _missing(name: str, shard: int, number: int) -> ClusterMemberStatus:
    nothing: dict[str, Any] = dict.fromkeys(
        ("role", "epoch", "wrote", "committed", "flushed", "acked", "confirmed", "behind_bytes", "is_draining",
         "loop_state", "readiness", "problem", "fault")
    )  # fmt: skip
    return ClusterMemberStatus(
        pod=name, shard=shard, number=number, phase="Missing", is_ready=False, restarts=0, node="", label="", **nothing
    )


def _ledgers(objects: GroupObjects, group: BrokerGroup | None) -> list[Ledger]:
    if group is None or not any(answer.documents for answer in objects.answers.values()):
        return []
    now_ms = time.monotonic_ns() // 1_000_000
    return [ledger_of(group.spec, shard, now_ms) for shard in observed_group(group, objects).shards]


def _is_ready(pod: Object) -> bool:
    conditions = _dicts(dict_of(pod.get("status")).get("conditions"))
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)


def _ready_of(pods: list[Object]) -> str:
    return f"{sum(map(_is_ready, pods))}/{len(pods)}" if pods else ""


def _condition(one: Mapping[str, Any]) -> GroupCondition:
    return GroupCondition(**{name: str(one.get(name) or "") for name in ("type", "status", "reason", "message")})


def _events(events: Iterable[Object]) -> list[GroupEvent]:
    found = [
        GroupEvent(
            at=str(one.get("lastTimestamp") or one.get("eventTime") or one.get("firstTimestamp") or ""),
            type=str(one.get("type") or ""),
            reason=str(one.get("reason") or ""),
            message=str(one.get("message") or ""),
        )
        for one in events
    ]
    return sorted(found, key=lambda event: event.at)[-EVENTS_KEPT:]


def dict_of(value: Any) -> dict[str, Any]:
    """Return the value if it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


# -- the values that gantry_spec explains ------------------------------------------------------------------------------
# Converts pods, Leases and the answers of sidecars to the values that ``gantry_spec`` explains, as the operator does.
#
# It is a single observation without a history, for display. No decision depends on it, so it has less than the
# operator's: volumes are not observed, and a process counts as running if the pod's container does.


class GroupObjects(NamedTuple):
    """The objects of a group, and the answers of its sidecars."""

    document: Object
    pods: Sequence[Object]
    """The pods of its brokers."""
    leases: Mapping[str, Object]
    """The Leases by their names."""
    answers: Mapping[str, Answer]
    """The answers of sidecars by the names of their pods."""

    @property
    def name(self) -> str:
        return str(self.document["metadata"]["name"])


def observed_group(group: BrokerGroup, objects: GroupObjects) -> ObservedGroup:
    """Return the group as the value that a decision takes."""
    observed_ms = time.monotonic_ns() // 1_000_000
    numbers = {place.shard for pod in objects.pods if (place := member_of(objects.name, pod["metadata"]["name"]))}
    requests = requests_of(objects.document)
    shards = [
        _shard(group, objects, number, observed_ms, requests)
        for number in sorted({*range(group.spec.shards), *numbers})
    ]
    return ObservedGroup(
        shards=tuple(shards),
        is_paused=requests.is_paused,
        is_hibernated=requests.is_hibernated,
        generation=group.metadata.generation,
    )


def requests_of(document: Object) -> GroupRequests:
    """Return the requests in a group's annotations, as the operator reads them. Invalid ones do not lift a fence."""
    return read_requests(annotations_of(document))[0]


def _shard(
    group: BrokerGroup, objects: GroupObjects, number: int, observed_ms: int, requests: GroupRequests
) -> ObservedShard:
    """Return one shard as the value that a decision takes."""
    pods = {}
    for pod in objects.pods:
        place = member_of(objects.name, pod["metadata"]["name"])
        if place is not None and place.shard == number:
            pods[place.member] = pod
    wanted_members = group.spec.members if number < group.spec.shards else range(0)
    lease = _lease(objects, number, observed_ms)
    record = None if lease is None else lease.record
    numbers = members_of(wanted_members, pods, record)
    return ObservedShard(
        number=number,
        lease=lease,
        members=tuple(_member_value(group, pods.get(one), one, objects, record) for one in numbers),
        is_fenced=number in requests.fenced_shards,
    )


def _lease(objects: GroupObjects, number: int, observed_ms: int) -> ObservedLease | None:
    document = objects.leases.get(f"{objects.name}-{number}")
    if document is None:
        return None
    try:
        return ObservedLease(record=record_of(annotations_of(document)), seen_ms=observed_ms)
    except InvalidLeaseRecord:
        return None


def _member_value(
    group: BrokerGroup, pod: Object | None, number: int, objects: GroupObjects, record: LeaseRecord | None
) -> Member:
    """Return one member as the value that a decision takes."""
    acks = None if pod is None else acks_needed(pod)
    acks = group.spec.replication.acks_needed if acks is None else acks
    if pod is None:
        # The pod of a master may have been deleted by force, so its process may still run.
        is_master = record is not None and any(term.master == number for term in record.terms)
        return Member(number=number, process=Process.UNKNOWN if is_master else Process.ABSENT, acks_needed=acks)
    uid = str(pod["metadata"].get("uid", ""))
    answer = objects.answers.get(pod["metadata"]["name"])
    report = None if answer is None else report_from(answer, uid)
    return Member(number=number, process=_process(pod), boot_id=uid, acks_needed=acks, report=report)


def report_from(answer: Answer, boot_id: str = "") -> Report | None:
    """Return the broker's report; None if its sidecar could not get one."""
    document = answer.documents.get(ROLE)
    if not isinstance(document, dict):
        return None
    times = {"asked_ms": answer.asked_ms, "answered_ms": answer.answered_ms}
    try:
        return report_of(document, **times, boot_id=boot_id)
    except ValueError:
        return None


def _process(pod: Object) -> Process:
    state = container_of(pod, BROKER_CONTAINER).get("state") or {}
    if "running" in state:
        return Process.RUNNING
    return Process.STOPPED if state else Process.UNKNOWN


def container_of(pod: Object, name: str) -> Object:
    """Return the status of one of a pod's containers, empty if there is none."""
    status = pod.get("status") or {}
    every = [*(status.get("containerStatuses") or []), *(status.get("initContainerStatuses") or [])]
    found: Object = next((one for one in every if one.get("name") == name), {})
    return found


def annotations_of(document: Object) -> dict[str, str]:
    """Return the annotations of any object."""
    return dict((document.get("metadata") or {}).get("annotations") or {})
