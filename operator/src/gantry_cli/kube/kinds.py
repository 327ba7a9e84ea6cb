"""What sorts of objects these commands look at, and where the API server has them."""

from __future__ import annotations

from typing import Final, NamedTuple

from gantry_spec.manifest.group import API_VERSION


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
