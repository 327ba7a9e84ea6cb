"""Groups and facts to render, and functions that find parts of the rendered objects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gantry_operator.objects import ArchiveFacts, Facts, render
from gantry_operator.objects.base import Object
from gantry_spec.manifest.group import BrokerGroup
from gantry_spec.manifest.reading import group_of
from gantry_spec.pipelines.parts import PodTemplate

EVERYTHING: dict[str, Any] = {
    "shards": 2,
    "slaves": 2,
    "writeBuffer": {"medium": "HugePages-2Mi", "buffers": 3, "segmentSize": "64Mi"},
    "access": {"aclSecret": "accounts", "tlsSecret": "certificates", "external": {"type": "NodePort"}},
    "broker": {"autoCreateTopicEnable": "false", "messageDelayLevel": "1s 5s"},
    "template": {
        "annotations": {"example.com/team": "orders", "gantry.dev/template": "mine"},
        "labels": {"example.com/team": "orders", "gantry.dev/role": "master", "app.kubernetes.io/name": "mine"},
        "tolerations": [{"key": "dedicated", "operator": "Exists"}],
        "nodeSelector": {"disk": "fast"},
        "priorityClassName": "high",
        "runtimeClassName": "sandboxed",
    },
    "retention": {"archive": "history", "server": {"replicas": 2}},
    "proxy": {"replicas": 2, "service": {"type": "LoadBalancer"}, "credentialsSecret": "proxy-account"},
}
"""A spec that uses many features: buffers, access from outside, a pod template, proxies, an archive, and others."""


def group(name: str = "orders", namespace: str = "shop", **spec: Any) -> BrokerGroup:
    """Return a group as an API server has accepted it."""
    document = {
        "apiVersion": "gantry.dev/v1alpha1",
        "kind": "BrokerGroup",
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-of-{name}", "generation": 1},
        "spec": spec,
    }
    return group_of(document)


def facts(**known: Any) -> Facts:
    """Return facts about the cluster, with an image."""
    return Facts(**({"image": "example.com/gantry@sha256:1234"} | known))


def archive(**changes: Any) -> ArchiveFacts:
    """Return the facts about an archive that a group names, on a claim that several Nodes can mount."""
    known: dict[str, Any] = {
        "name": "history",
        "pipeline": "history-archive",
        "image": "example.com/pipelines@sha256:1234",
        "pull_policy": "IfNotPresent",
        "spec": {"brokerGroups": ["orders"], "topics": {"include": [".*"]}},
        "claim": "history",
        "path": "orders",
        "is_on_one_node": False,
        "template": PodTemplate(),
    }
    return ArchiveFacts(**known | changes)


def everywhere() -> Facts:
    """Return facts about a cluster with all kinds, a Gateway with listeners for many ports, and an archive."""
    listeners = {port: f"tcp-{port}" for port in range(9_800, 10_000)}
    route_api = "gateway.networking.k8s.io/v1"
    return facts(
        has_pod_monitor=True, has_prometheus_rule=True, route_api=route_api, gateway_listeners=listeners,
        archive=archive(),
    )  # fmt: skip


def rendered(one: BrokerGroup, known: Facts | None = None) -> tuple[Object, ...]:
    """Return all objects that are rendered for a group."""
    return render(one, known or everywhere())


def of_kind(objects: Iterable[Object], kind: str) -> dict[str, Object]:
    """Return the objects of a kind, by name."""
    return {one["metadata"]["name"]: one for one in objects if one["kind"] == kind}


def broker_sets(objects: Iterable[Object]) -> dict[str, Object]:
    """Return the StatefulSets of brokers, by name."""
    return {name: one for name, one in of_kind(objects, "StatefulSet").items() if not name.endswith("-nameserver")}


def template_hash(one: BrokerGroup, known: Facts | None = None) -> str:
    """Return the hash of the pod template of the StatefulSet `NAME-0-master`."""
    metadata = broker_sets(rendered(one, known))[f"{one.metadata.name}-0-master"]["spec"]["template"]["metadata"]
    found: str = metadata["annotations"]["gantry.dev/template"]
    return found


def containers(template: Object) -> dict[str, Object]:
    """Return the containers of a pod template by name, with its init containers (native sidecars)."""
    spec = template["spec"]
    return {one["name"]: one for one in [*spec["containers"], *spec.get("initContainers", [])]}


def mounts(container: Object) -> dict[str, Object]:
    """Return the mounts of a container, by volume."""
    return {one["name"]: one for one in container["volumeMounts"]}


def pods_of(objects: Iterable[Object]) -> list[tuple[str, dict[str, str], str]]:
    """Return every pod that StatefulSets would create: its name, its labels, and its StatefulSet's name."""
    found = []
    for name, one in of_kind(objects, "StatefulSet").items():
        for ordinal in range(one["spec"]["replicas"]):
            pod = f"{name}-{ordinal}"
            labels = one["spec"]["template"]["metadata"]["labels"] | {"statefulset.kubernetes.io/pod-name": pod}
            found.append((pod, labels, name))
    return found


def is_selected(labels: dict[str, str], selector: dict[str, Any]) -> bool:
    """Return whether a selector of labels selects a pod."""
    assert set(selector) <= {"matchLabels"}, "expected a plain selector"
    return all(labels.get(name) == value for name, value in selector.get("matchLabels", {}).items())
