"""What the API server and the operator call the objects that these commands look at."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from gantry_spec.manifest.group import API_GROUP, API_VERSION

GROUP_LABEL: Final = f"{API_GROUP}/group"
ROLE_LABEL: Final = f"{API_GROUP}/role"
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
BROKER: Final = "broker"
NAME_SERVER: Final = "nameserver"
BROKER_CONTAINER: Final = "broker"
SIDECAR_CONTAINER: Final = "sidecar"
OPERATOR_LABELS: Final = "app.kubernetes.io/name=gantry-operator"
SHORT_NAMES: Final = ("bg", "brokergroup", "brokergroups", "brokergroup.gantry.dev", "brokergroups.gantry.dev")


class Place(NamedTuple):
    """Which broker of a group a pod is."""

    shard: int
    member: int


def place_of(group: str, pod: str) -> Place | None:
    """Of a pod by its name; None for one that is no broker of the group."""
    match = re.fullmatch(rf"{re.escape(group)}-(\d+)-(?:master-0|slave-(\d+))", pod, re.ASCII)
    if match is None:
        return None
    return Place(int(match[1]), 1 if match[2] is None else int(match[2]) + 2)


def pod_of(group: str, shard: int, member: int) -> str:
    """The name of a member's pod."""
    return f"{group}-{shard}-master-0" if member == 1 else f"{group}-{shard}-slave-{member - 2}"


def lease_of(group: str, shard: int) -> str:
    """The name of a shard's Lease."""
    return f"{group}-{shard}"


def brokers_of(group: str) -> str:
    """What the pods of a group's brokers are selected by."""
    return f"{GROUP_LABEL}={group},{COMPONENT_LABEL}={BROKER}"


def group_word(text: str) -> str | None:
    """The name in `bg/NAME`, by any name that kubectl knows for the kind; None for what is none of these."""
    kind, slash, name = text.partition("/")
    return name if slash and kind.lower() in SHORT_NAMES else None


# -- kinds of objects --------------------------------------------------------------------------------------------------
# What sorts of objects these commands look at, and where the API server has them.


class Kind(NamedTuple):
    """One sort."""

    api_version: str
    name: str
    plural: str
    is_namespaced: bool = True

    def path(self, namespace: str = "", name: str = "", part: str = "") -> str:
        """Of all of them, of those of a namespace, of one, or of a part of one."""
        root = f"/api/{self.api_version}" if "/" not in self.api_version else f"/apis/{self.api_version}"
        place = [f"namespaces/{namespace}"] if self.is_namespaced and namespace else []
        return "/".join([root, *place, self.plural, *(word for word in (name, part) if word)])


GROUPS: Final = Kind(API_VERSION, "BrokerGroup", "brokergroups")
PODS: Final = Kind("v1", "Pod", "pods")
EVENTS: Final = Kind("v1", "Event", "events")
LEASES: Final = Kind("coordination.k8s.io/v1", "Lease", "leases")
NODES: Final = Kind("v1", "Node", "nodes", is_namespaced=False)
NAMESPACES: Final = Kind("v1", "Namespace", "namespaces", is_namespaced=False)
DEPLOYMENTS: Final = Kind("apps/v1", "Deployment", "deployments")

PACKED: Final = (
    PODS,
    LEASES,
    Kind("apps/v1", "StatefulSet", "statefulsets"),
    Kind("v1", "Service", "services"),
    Kind("v1", "ConfigMap", "configmaps"),
    Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
    Kind("v1", "ServiceAccount", "serviceaccounts"),
    Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
    Kind("rbac.authorization.k8s.io/v1", "Role", "roles"),
    Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings"),
    Kind("monitoring.coreos.com/v1", "PodMonitor", "podmonitors"),
    Kind("monitoring.coreos.com/v1", "PrometheusRule", "prometheusrules"),
)
"""Of a group, what a bundle takes. Secrets are not among them, and are nowhere in this package."""
