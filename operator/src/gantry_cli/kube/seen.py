"""From pods, Leases and what sidecars say to the values that ``gantry_spec`` explains: the operator's view, seen anew.

It is one look without a memory, for people. Nothing is decided by it, so it may know less than the operator: a volume
is not looked at, and a process runs if the pod's container does.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gantry_cli.kube.cluster import Object
from gantry_cli.kube.inside import ROLE, Answer
from gantry_cli.kube.naming import BROKER_CONTAINER, place_of
from gantry_spec.heard import Besides, report_of
from gantry_spec.lease_annotations import BadRecord, record_of
from gantry_spec.manifest.annotations import Wanted, asked
from gantry_spec.manifest.group import BrokerGroup
from gantry_spec.observed import Member, Observed, ObservedLease, ObservedShard, Process, Report


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
    numbers = {place.shard for pod in found.pods if (place := place_of(found.name, pod["metadata"]["name"]))}
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
        place = place_of(found.name, pod["metadata"]["name"])
        if place is not None and place.shard == number:
            pods[place.member] = pod
    wanted_members = group.spec.members if number < group.spec.shards else range(0)
    members = [_member(group, pods.get(one), one, found) for one in sorted({*wanted_members, *pods})]
    return ObservedShard(
        number=number,
        lease=_lease(found, number, seen_ms),
        members=tuple(members),
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


def _member(group: BrokerGroup, pod: Object | None, number: int, found: Found) -> Member:
    acks_needed = group.spec.replication.acks_needed
    if pod is None:
        return Member(number=number, process=Process.ABSENT, acks_needed=acks_needed)
    uid = str(pod["metadata"].get("uid", ""))
    answer = found.answers.get(pod["metadata"]["name"])
    report = None if answer is None else report_from(answer, uid)
    return Member(number=number, process=_process(pod), boot_id=uid, acks_needed=acks_needed, report=report)


def report_from(answer: Answer, boot_id: str = "") -> Report | None:
    """What the broker says of itself; None if its sidecar has not got that out of it."""
    said = answer.said.get(ROLE)
    if not isinstance(said, dict):
        return None
    times = {"asked_ms": answer.asked_ms, "answered_ms": answer.answered_ms}
    try:
        return report_of(said, **times, besides=Besides(boot_id=boot_id))
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
