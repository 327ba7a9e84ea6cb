"""Pieces of pods that all pods of a group have alike: who they run as, what they may not do, where they may run.

Everything here passes the level `restricted` of pod security, and goes a little further: the root file system is
read-only, and no token of a service account is mounted by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gantry_operator.objects import names
from gantry_operator.objects.base import Object, selector
from gantry_operator.objects.facts import Facts
from gantry_spec.manifest.group import BrokerGroup
from gantry_spec.manifest.parts import Template
from gantry_spec.pipelines.parts import PodTemplate

USER: Final = 10001
HOST_KEY: Final = "kubernetes.io/hostname"
ZONE_KEY: Final = "topology.kubernetes.io/zone"
TEMPORARY_FOLDER: Final = "/tmp"
TEMPORARY_BYTES: Final = "64Mi"


def pod_security(user: int = USER) -> Object:
    """Of a pod. ``fsGroup`` is what lets a user that is not root write into volumes, hugetlbfs among them."""
    return {
        "runAsNonRoot": True,
        "runAsUser": user,
        "runAsGroup": user,
        "fsGroup": user,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def placement(template: Template | PodTemplate, affinity: Mapping[str, Any]) -> Object:
    """Where the user wants pods to run, with the affinity that comes of it."""
    found: Object = {}
    if template.node_selector:
        found["nodeSelector"] = dict(template.node_selector)
    if template.tolerations:
        found["tolerations"] = list(template.tolerations)
    if affinity:
        found["affinity"] = dict(affinity)
    if template.priority_class_name:
        found["priorityClassName"] = template.priority_class_name
    return found


def unreserved(given: dict[str, str], reserved: tuple[str, ...] = names.OUR_PREFIXES) -> dict[str, str]:
    """Labels or annotations of the user, without those whose prefix is reserved."""
    return {name: value for name, value in given.items() if not name.startswith(reserved)}


def api_access_sources() -> list[Object]:
    """What a client of the API server needs: a token that expires after an hour and is replaced, and the authority."""
    return [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    ]


def container_security() -> Object:
    """Of every container."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container(group: BrokerGroup, facts: Facts, name: str, arguments: list[str], **more: Any) -> Object:
    """A container of ours: the one image, whose program is `gantry`."""
    return {
        "name": name,
        "image": group.spec.image or facts.image,
        "imagePullPolicy": facts.pull_policy,
        "args": arguments,
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    } | more


def pod_spec(facts: Facts, containers: list[Object], volumes: list[Object], **more: Any) -> Object:
    """A pod."""
    pull_secrets = [{"name": name} for name in facts.pull_secrets]
    return (
        {
            "securityContext": pod_security(),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "containers": containers,
            "volumes": [*volumes, {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": TEMPORARY_BYTES}}],
        }
        | ({"imagePullSecrets": pull_secrets} if pull_secrets else {})
        | more
    )


def mount(volume: str, path: str, *, is_read_only: bool = False) -> Object:
    """Of a volume into a container."""
    return {"name": volume, "mountPath": path} | ({"readOnly": True} if is_read_only else {})


def temporary() -> Object:
    """Python and its libraries want a folder to write into."""
    return mount("tmp", TEMPORARY_FOLDER)


def secret_volume(volume: str, secret: str, *keys: str) -> Object:
    """A Secret, or some of its keys under their own names."""
    body: Object = {"secretName": secret, "defaultMode": 0o440}
    return {"name": volume, "secret": body | ({"items": [{"key": key, "path": key} for key in keys]} if keys else {})}


def from_field(name: str, path: str) -> Object:
    """A variable with what the pod is."""
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def place_variables() -> list[Object]:
    """Which pod this is."""
    return [
        from_field("POD_NAME", "metadata.name"),
        from_field("POD_NAMESPACE", "metadata.namespace"),
    ]


def apart(group: BrokerGroup, component: str, shard: int | None, *, is_demanded: bool) -> Object:
    """An affinity: never, or rather not, on one machine with another of the same."""
    term = {"labelSelector": {"matchLabels": selector(group, component, shard)}, "topologyKey": HOST_KEY}
    if is_demanded:
        rules: Object = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    else:
        rules = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}
    return {"podAntiAffinity": rules}


def over_zones(group: BrokerGroup, component: str, shard: int | None) -> Object:
    """Rather not in one zone: a wish, since a group shall also run where there is only one."""
    return {
        "maxSkew": 1,
        "topologyKey": ZONE_KEY,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": selector(group, component, shard)},
    }


def tcp_probe(port: int, *, period_s: int, failures: int) -> Object:
    """Whether somebody listens."""
    return {"tcpSocket": {"port": port}, "periodSeconds": period_s, "timeoutSeconds": 3, "failureThreshold": failures}


def http_probe(path: str, *, period_s: int, failures: int, is_tls: bool = False) -> Object:
    """What the sidecar says. kubelet believes any certificate."""
    scheme = {"scheme": "HTTPS"} if is_tls else {}
    return {
        "httpGet": {"path": path, "port": names.SIDECAR_PORT} | scheme,
        "periodSeconds": period_s,
        "timeoutSeconds": 3,
        "failureThreshold": failures,
    }
