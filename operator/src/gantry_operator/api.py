"""The port to Kubernetes: objects as plain values, and the few verbs that are used, each with what makes it safe.

    apply      server-side, with a field manager of our own and force: we own what we say, and leave the rest alone
    status     the same for `status`, under another manager, so that neither takes the other's fields away
    patch      a merge patch; with ``uid`` it is for just that object, with ``revision`` for just that version of it
    delete     never without the uid of the one that is meant
    create     as it is; `Conflict` if it exists

There is no "update whatever is there": a late or doubled call must find that its object is another one by now. What
the API server says comes back as an error of ``errors``; what an answer holds is what the object is then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol

from gantry_spec.cluster_objects import Kind as Kind
from gantry_spec.manifest.group import API_VERSION
from gantry_spec.pipelines.kinds import PIPELINE_KINDS

Object = dict[str, Any]

FIELD_MANAGER: Final = "gantry-operator"
STATUS_MANAGER: Final = "gantry-operator-status"

GROUPS: Final = Kind(API_VERSION, "BrokerGroup", "brokergroups")
PODS: Final = Kind("v1", "Pod", "pods")
NODES: Final = Kind("v1", "Node", "nodes", is_namespaced=False)
CLAIMS: Final = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
VOLUMES: Final = Kind("v1", "PersistentVolume", "persistentvolumes", is_namespaced=False)
SERVICES: Final = Kind("v1", "Service", "services")
SECRETS: Final = Kind("v1", "Secret", "secrets")
CONFIG_MAPS: Final = Kind("v1", "ConfigMap", "configmaps")
EVENTS: Final = Kind("v1", "Event", "events")
ACCOUNTS: Final = Kind("v1", "ServiceAccount", "serviceaccounts")
JOBS: Final = Kind("batch/v1", "Job", "jobs")
CRON_JOBS: Final = Kind("batch/v1", "CronJob", "cronjobs")
STATEFUL_SETS: Final = Kind("apps/v1", "StatefulSet", "statefulsets")
LEASES: Final = Kind("coordination.k8s.io/v1", "Lease", "leases")
BUDGETS: Final = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
POLICIES: Final = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
ROLES: Final = Kind("rbac.authorization.k8s.io/v1", "Role", "roles")
ROLE_BINDINGS: Final = Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings")
POD_MONITORS: Final = Kind("monitoring.coreos.com/v1", "PodMonitor", "podmonitors")
PROMETHEUS_RULES: Final = Kind("monitoring.coreos.com/v1", "PrometheusRule", "prometheusrules")
PIPELINES: Final = tuple(Kind(API_VERSION, kind.name, kind.plural) for kind in PIPELINE_KINDS)
"""TopicArchive, LogAudit, TopicAnalytics."""

KINDS: Final = (
    *(GROUPS, PODS, NODES, CLAIMS, VOLUMES, SERVICES, SECRETS, CONFIG_MAPS, EVENTS, ACCOUNTS, STATEFUL_SETS, LEASES),
    *(BUDGETS, POLICIES, ROLES, ROLE_BINDINGS, POD_MONITORS, PROMETHEUS_RULES, JOBS, CRON_JOBS, *PIPELINES),
)
_BY_NAME: Final = {(kind.api_version, kind.name): kind for kind in KINDS}


class Place(NamedTuple):
    """Which object."""

    kind: Kind
    namespace: str
    name: str

    def __str__(self) -> str:
        return (
            f"{self.kind.plural} {self.namespace}/{self.name}" if self.namespace else f"{self.kind.plural} {self.name}"
        )


class Kubernetes(Protocol):
    """The API server, or what a test has in its place. Every call raises leaves of ``errors.ApiError``."""

    async def get(self, place: Place) -> Object:
        """As it is now, not as a cache has it. Raises ``Gone`` if there is none."""

    async def list(self, kind: Kind, namespace: str = "", labels: str = "") -> list[Object]:
        """All of a kind, of one namespace or all, with these labels."""

    async def apply(self, document: Object) -> Object:
        """Server-side apply."""

    async def apply_status(self, place: Place, status: Mapping[str, Any]) -> Object:
        """The same for its status."""

    async def patch(
        self, place: Place, change: Mapping[str, Any], *, uid: str = "", revision: str = "", part: str = ""
    ) -> Object:
        """A merge patch: None takes a field away."""

    async def create(self, document: Object) -> Object:
        """A new one."""

    async def delete(self, place: Place, *, uid: str, grace_s: int | None = None, is_orphaning: bool = False) -> None:
        """Just that one. ``is_orphaning`` leaves what it owns. One that is gone already is deleted."""


def kind_of(document: Mapping[str, Any]) -> Kind:
    """Of a document. One that is not in the table is a bug of ours."""
    return _BY_NAME[document["apiVersion"], document["kind"]]


def place_of(document: Mapping[str, Any]) -> Place:
    """Where a document belongs."""
    metadata = document["metadata"]
    return Place(kind_of(document), metadata.get("namespace", ""), metadata["name"])


def manifest_of(document: Mapping[str, Any]) -> Object:
    """What a person has written: the document without its status."""
    return {key: value for key, value in document.items() if key != "status"}


def uid_of(document: Mapping[str, Any]) -> str:
    """Of an object as the API server has it."""
    return str(document["metadata"].get("uid", ""))


def owner_uids(document: Mapping[str, Any]) -> set[str]:
    """Of those who own an object."""
    return {str(one.get("uid", "")) for one in document["metadata"].get("ownerReferences") or []}


def revision_of(document: Mapping[str, Any]) -> str:
    """Its resourceVersion."""
    return str(document["metadata"].get("resourceVersion", ""))


def labels_of(document: Mapping[str, Any]) -> dict[str, str]:
    """Those that it has."""
    return document["metadata"].get("labels") or {}


def annotations_of(document: Mapping[str, Any]) -> dict[str, str]:
    """Those that it has."""
    return document["metadata"].get("annotations") or {}
