"""Common parts of the pods of a group: user, security context, placement, volumes and probes.

All pods satisfy the Pod Security Standard `restricted`. In addition, the root file system is read-only, and no token of
a service account is mounted automatically.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gantry_operator.objects import names
from gantry_operator.objects.base import Object, selector
from gantry_operator.objects.facts import Facts
from gantry_spec.manifest.group import BrokerGroup
from gantry_spec.manifest.parts import PodSettings
from gantry_spec.pipelines.parts import PodTemplate

USER: Final = 10001
"""The user and group id with which all processes run."""

PIPELINE_USER: Final = 185
"""The user and group id of processes of the image of pipelines, as is usual for Spark."""

HOST_KEY: Final = "kubernetes.io/hostname"
ZONE_KEY: Final = "topology.kubernetes.io/zone"
TEMPORARY_FOLDER: Final = "/tmp"
TEMPORARY_BYTES: Final = "64Mi"


def pod_security(user: int = USER) -> Object:
    """Return the security context of a pod. ``fsGroup`` allows a non-root user to write to volumes, also hugetlbfs."""
    return {
        "runAsNonRoot": True,
        "runAsUser": user,
        "runAsGroup": user,
        "fsGroup": user,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def placement(template: PodSettings | PodTemplate, affinity: Mapping[str, Any]) -> Object:
    """Return the placement of pods from the user's template, with this affinity."""
    found: Object = {}
    if template.node_selector:
        found["nodeSelector"] = dict(template.node_selector)
    if template.tolerations:
        found["tolerations"] = list(template.tolerations)
    if affinity:
        found["affinity"] = dict(affinity)
    if template.priority_class_name:
        found["priorityClassName"] = template.priority_class_name
    if template.runtime_class_name:
        found["runtimeClassName"] = template.runtime_class_name
    return found


def without_reserved(given: dict[str, str], reserved: tuple[str, ...] = names.OUR_PREFIXES) -> dict[str, str]:
    """Return the user's labels or annotations without those that have a reserved prefix."""
    return {name: value for name, value in given.items() if not name.startswith(reserved)}


def api_access_sources() -> list[Object]:
    """Return the volume sources for a client of the API server: a rotated token, valid for an hour, and the CA."""
    return [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    ]


def container_security() -> Object:
    """Return the security context of every container."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container(group: BrokerGroup, facts: Facts, name: str, arguments: list[str], **more: Any) -> Object:
    """Return a container of the group's image, whose entry point is `gantry`."""
    return {
        "name": name,
        "image": group.spec.image or facts.image,
        "imagePullPolicy": facts.pull_policy,
        "args": arguments,
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    } | more


def pod_spec(facts: Facts, containers: list[Object], volumes: list[Object], **more: Any) -> Object:
    """Return the spec of a pod, with its security settings and a temporary folder."""
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
    """Return the mount of a volume in a container."""
    return {"name": volume, "mountPath": path} | ({"readOnly": True} if is_read_only else {})


def tmp_mount() -> Object:
    """Return the mount of a writable temporary folder, which Python and its libraries need."""
    return mount("tmp", TEMPORARY_FOLDER)


def secret_volume(volume: str, secret: str, *keys: str) -> Object:
    """Return a volume with a Secret, or with some of its keys, as files of the same names."""
    body: Object = {"secretName": secret, "defaultMode": 0o440}
    return {"name": volume, "secret": body | ({"items": [{"key": key, "path": key} for key in keys]} if keys else {})}


def field_variable(name: str, path: str) -> Object:
    """Return an environment variable with a field of the pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def identity_variables() -> list[Object]:
    """Return the environment variables with the name and namespace of the pod."""
    return [
        field_variable("POD_NAME", "metadata.name"),
        field_variable("POD_NAMESPACE", "metadata.namespace"),
    ]


def anti_affinity(group: BrokerGroup, component: str, shard: int | None, *, is_required: bool) -> Object:
    """Return an anti-affinity, required or preferred, between pods of the same component and shard on one Node."""
    term = {"labelSelector": {"matchLabels": selector(group, component, shard)}, "topologyKey": HOST_KEY}
    if is_required:
        rules: Object = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    else:
        rules = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}
    return {"podAntiAffinity": rules}


def prefer_same_node(given: Mapping[str, Any], chosen: Mapping[str, str]) -> Object:
    """Return an affinity with a preference for the Node of pods with these labels, before the preferences given."""
    key = "preferredDuringSchedulingIgnoredDuringExecution"
    term = {"labelSelector": {"matchLabels": dict(chosen)}, "topologyKey": HOST_KEY}
    part = dict(given.get("podAffinity") or {})
    return {**given, "podAffinity": part | {key: [{"weight": 100, "podAffinityTerm": term}, *(part.get(key) or [])]}}


def zone_spread(group: BrokerGroup, component: str, shard: int | None) -> Object:
    """Return a preferred spread over zones. It is not required, so that a group also runs in a single zone."""
    return {
        "maxSkew": 1,
        "topologyKey": ZONE_KEY,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": selector(group, component, shard)},
    }


def tcp_probe(port: int, *, period_s: int, failures: int) -> Object:
    """Return a probe that succeeds if the TCP port is open."""
    return {"tcpSocket": {"port": port}, "periodSeconds": period_s, "timeoutSeconds": 3, "failureThreshold": failures}


def http_probe(
    path: str, *, period_s: int, failures: int, is_tls: bool = False, port: int = names.SIDECAR_PORT
) -> Object:
    """Return a probe of an HTTP path, by default of the sidecar. kubelet does not verify certificates."""
    scheme = {"scheme": "HTTPS"} if is_tls else {}
    return {
        "httpGet": {"path": path, "port": port} | scheme,
        "periodSeconds": period_s,
        "timeoutSeconds": 3,
        "failureThreshold": failures,
    }


def with_defaults(given: Mapping[str, Any], memory: str, cpu: str) -> Object:
    """Return the resources of a container, with memory and CPU that are not set.

    Values that are no mappings are passed on, so that the API server refuses them with its own message.
    """
    if not all(isinstance(given.get(name, {}), Mapping) for name in ("requests", "limits")):
        return dict(given)
    requests, most = dict(given.get("requests", {})), dict(given.get("limits", {}))
    most.setdefault("memory", requests.get("memory", memory))
    requests.setdefault("memory", most["memory"])
    requests.setdefault("cpu", cpu)
    return {**given, "requests": requests, "limits": most}
