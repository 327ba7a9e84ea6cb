"""The kinds, names and labels of the objects that these commands read."""

from __future__ import annotations

from typing import Final

from gantry_spec.backups import SNAPSHOT_API
from gantry_spec.cluster_objects import BROKER, COMPONENT_LABEL, GATEWAY_GROUP, GROUP_LABEL, Kind
from gantry_spec.manifest.group import API_VERSION

SIDECAR_CONTAINER: Final = "sidecar"
OPERATOR_LABELS: Final = "app.kubernetes.io/name=gantry-operator"
"""The label selector of the operator's pods and Deployment."""

SHORT_NAMES: Final = ("bg", "brokergroup", "brokergroups", "brokergroup.gantry.dev", "brokergroups.gantry.dev")
"""The names of the kind BrokerGroup that may precede the name of a group."""


def broker_selector(group: str) -> str:
    """Return the label selector of a group's broker pods."""
    return f"{GROUP_LABEL}={group},{COMPONENT_LABEL}={BROKER}"


def group_name_in(text: str) -> str | None:
    """Return the name in `bg/NAME`, for each name of the kind in SHORT_NAMES; None for any other text."""
    kind, slash, name = text.partition("/")
    return name if slash and kind.lower() in SHORT_NAMES else None


def status_command(namespace: str, group: str) -> str:
    """Return the command that shows this group, for hints: without a group, `gantry status` shows other clusters."""
    return f"`gantry status bg/{group} --namespace {namespace}`"


GROUPS: Final = Kind(API_VERSION, "BrokerGroup", "brokergroups")
PODS: Final = Kind("v1", "Pod", "pods")
CLAIMS: Final = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
SNAPSHOTS: Final = Kind(SNAPSHOT_API, "VolumeSnapshot", "volumesnapshots")
EVENTS: Final = Kind("v1", "Event", "events")
LEASES: Final = Kind("coordination.k8s.io/v1", "Lease", "leases")
NODES: Final = Kind("v1", "Node", "nodes", is_namespaced=False)
VOLUMES: Final = Kind("v1", "PersistentVolume", "persistentvolumes", is_namespaced=False)
STORAGE_CLASSES: Final = Kind("storage.k8s.io/v1", "StorageClass", "storageclasses", is_namespaced=False)
STORAGE_CAPACITIES: Final = Kind("storage.k8s.io/v1", "CSIStorageCapacity", "csistoragecapacities")
RUNTIME_CLASSES: Final = Kind("node.k8s.io/v1", "RuntimeClass", "runtimeclasses", is_namespaced=False)
NAMESPACES: Final = Kind("v1", "Namespace", "namespaces", is_namespaced=False)
DEPLOYMENTS: Final = Kind("apps/v1", "Deployment", "deployments")

BUNDLED_KINDS: Final = (
    PODS,
    LEASES,
    Kind("apps/v1", "StatefulSet", "statefulsets"),
    DEPLOYMENTS,
    Kind("v1", "Service", "services"),
    Kind("v1", "ConfigMap", "configmaps"),
    CLAIMS,
    SNAPSHOTS,
    Kind("v1", "ServiceAccount", "serviceaccounts"),
    Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
    Kind("rbac.authorization.k8s.io/v1", "Role", "roles"),
    Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings"),
    Kind("cert-manager.io/v1", "Certificate", "certificates"),
    Kind(f"{GATEWAY_GROUP}/v1", "TCPRoute", "tcproutes"),
    Kind(f"{GATEWAY_GROUP}/v1alpha2", "TCPRoute", "tcproutes"),
    Kind("monitoring.coreos.com/v1", "PodMonitor", "podmonitors"),
    Kind("monitoring.coreos.com/v1", "PrometheusRule", "prometheusrules"),
)
"""The kinds of a group's objects in a bundle. Secrets are not among them, and this package never reads one."""
