"""What the rendered objects of a group need: the pods of each workload, their volumes, and totals.

The figures are those of the objects that the operator applies, so that nothing about memory is calculated here.
Brokers are replaced one by one, each after its predecessor has ended, so that a roll needs no more than the group
itself. Only a Deployment with ``maxSurge``, that of the proxies, starts a pod before it stops another.

The API server adds the overhead of a runtime class to a pod when it is created, so ``with_runtime_classes`` adds it to
planned pods. Pods that exist have it in their own spec.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, final

from gantry_spec.capacity.resources import Amounts, added, amounts_of, limits_of, requests_of, scaled
from gantry_spec.cluster_objects import COMPONENT_LABEL, POD_NAME_LABEL

Object = Mapping[str, Any]

POD_KINDS: Final = ("StatefulSet", "Deployment")
"""The kinds of rendered objects that create pods."""

SURGE_DEFAULT: Final = "25%"
"""The value of ``maxSurge`` of a Deployment without one."""


@final
class Claim(NamedTuple):
    """The volume of each pod of a workload."""

    prefix: str
    """The name of a claim is this, a hyphen, and the name of its pod."""

    storage_class: str
    """The storage class; empty for the default class of the cluster."""

    size_bytes: int

    def name(self, pod: str) -> str:
        """Return the name of a pod's claim."""
        return f"{self.prefix}-{pod}"


@final
class Workload(NamedTuple):
    """A StatefulSet or a Deployment: a number of equal pods."""

    name: str
    namespace: str
    component: str
    """What its pods are: `broker`, `nameserver` or `proxy`."""

    pods: tuple[str, ...]
    """The names of its pods. Those of a Deployment are not known before, and are numbered here."""

    labels: Mapping[str, str]
    spec: Object
    """The spec of its pods."""

    requests: Amounts
    limits: Amounts
    claims: tuple[Claim, ...] = ()
    surge: int = 0
    """How many pods a roll adds for a time."""

    is_stateful: bool = True
    """Whether its pods have fixed names."""

    def labels_of(self, pod: str) -> Mapping[str, str]:
        """Return the labels that a pod of it will have."""
        return {**self.labels, POD_NAME_LABEL: pod} if self.is_stateful else self.labels


@final
class Totals(NamedTuple):
    """What several workloads need together."""

    pods: int
    requests: Amounts
    surge: Amounts
    """What a roll needs in addition, at most, if only one workload is rolled at a time."""

    volumes: int
    volume_bytes: int


def workloads_of(objects: Iterable[Object]) -> list[Workload]:
    """Return the workloads among rendered objects, in their order. Raises ``InvalidQuantity``."""
    found = [_workload(one) for one in objects if one["kind"] in POD_KINDS]
    return [one for one in found if one.pods]


def runtime_class_names(objects: Iterable[Object]) -> list[str]:
    """Return the names of the runtime classes that the pods of rendered objects have."""
    specs = (one["spec"]["template"]["spec"] for one in objects if one["kind"] in POD_KINDS)
    return sorted({str(spec["runtimeClassName"]) for spec in specs if spec.get("runtimeClassName")})


def with_runtime_classes(objects: Iterable[Object], classes: Mapping[str, Object]) -> list[Object]:
    """Return rendered objects whose pods have what the API server adds to pods of these runtime classes.

    It adds the overhead, which the scheduler reserves beside the requests, and the nodes that have the runtime: a node
    selector and tolerations. Pods of an unknown class get nothing.
    """
    return [_with_class(one, classes) if one["kind"] in POD_KINDS else one for one in objects]


def _with_class(document: Object, classes: Mapping[str, Object]) -> Object:
    template = document["spec"]["template"]
    spec = template["spec"]
    found = classes.get(str(spec.get("runtimeClassName") or ""))
    if found is None:
        return document
    overhead, scheduling = (found.get("overhead") or {}).get("podFixed"), found.get("scheduling") or {}
    added_parts: dict[str, Any] = {"overhead": overhead} if overhead else {}
    if scheduling.get("nodeSelector"):
        added_parts["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **scheduling["nodeSelector"]}
    if scheduling.get("tolerations"):
        added_parts["tolerations"] = [*(spec.get("tolerations") or []), *scheduling["tolerations"]]
    return {**document, "spec": {**document["spec"], "template": {**template, "spec": {**spec, **added_parts}}}}


def totals_of(workloads: Sequence[Workload]) -> Totals:
    """Return what workloads need together."""
    claims = [claim for one in workloads for _ in one.pods for claim in one.claims]
    surges = [scaled(one.requests, one.surge) for one in workloads]
    return Totals(
        pods=sum(len(one.pods) for one in workloads),
        requests=added(*(scaled(one.requests, len(one.pods)) for one in workloads)),
        surge={name: max(one.get(name, 0) for one in surges) for name in added(*surges)},
        volumes=len(claims),
        volume_bytes=sum(claim.size_bytes for claim in claims),
    )


def _workload(document: Object) -> Workload:
    metadata, body = document["metadata"], document["spec"]
    template, name, count = body["template"], str(metadata["name"]), int(body.get("replicas", 1))
    is_stateful = document["kind"] == "StatefulSet"
    labels = template["metadata"].get("labels") or {}
    return Workload(
        name=name,
        namespace=str(metadata.get("namespace", "")),
        component=str(labels.get(COMPONENT_LABEL, "")),
        pods=tuple(f"{name}-{number}" for number in range(count)),
        labels=labels,
        spec=template["spec"],
        requests=requests_of(template),
        limits=limits_of(template),
        claims=tuple(_claim(one) for one in body.get("volumeClaimTemplates") or []),
        surge=0 if is_stateful else _surge(body, count),
        is_stateful=is_stateful,
    )


def _claim(template: Object) -> Claim:
    spec = template["spec"]
    size = amounts_of((spec.get("resources") or {}).get("requests")).get("storage", 0)
    return Claim(str(template["metadata"]["name"]), str(spec.get("storageClassName") or ""), size)


def _surge(body: Object, count: int) -> int:
    strategy = body.get("strategy") or {}
    if strategy.get("type", "RollingUpdate") != "RollingUpdate":
        return 0
    text = str((strategy.get("rollingUpdate") or {}).get("maxSurge", SURGE_DEFAULT))
    return math.ceil(count * int(text.removesuffix("%")) / 100) if text.endswith("%") else int(text)
