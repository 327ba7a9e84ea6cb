"""The port to Kubernetes: objects as plain values, and the verbs that the operator uses, each with its safeguard.

    apply      server-side apply, with a field manager of its own and force: the operator owns the fields that it sends
    status     the same for `status`, under another manager, so that neither removes the other's fields
    patch      a merge patch; ``uid`` restricts it to one object, ``revision`` to one version of the object
    delete     requires the uid of the object
    create     raises `Conflict` if the object exists

Apart from ``apply`` and ``status``, there is no unconditional update: a late or repeated call must fail if its object
was replaced meanwhile. These two have no precondition: they set the fields that they send, also in an object that was
created anew. Errors of the API server are raised as leaves of ``errors.ApiError``; every change but ``delete`` returns
the object as it is afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from gantry_spec.backups import SNAPSHOT_API
from gantry_spec.cluster_objects import GATEWAY_GROUP
from gantry_spec.cluster_objects import Kind as Kind
from gantry_spec.manifest.group import API_VERSION
from gantry_spec.pipelines.kinds import PIPELINE_KINDS

Object = dict[str, Any]
T = TypeVar("T")
Kept = list[T]
"""A list, by a name that the method ``list`` of a class does not hide."""

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
DEPLOYMENTS: Final = Kind("apps/v1", "Deployment", "deployments")
LEASES: Final = Kind("coordination.k8s.io/v1", "Lease", "leases")
BUDGETS: Final = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
SNAPSHOTS: Final = Kind(SNAPSHOT_API, "VolumeSnapshot", "volumesnapshots")
POLICIES: Final = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
ROLES: Final = Kind("rbac.authorization.k8s.io/v1", "Role", "roles")
ROLE_BINDINGS: Final = Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings")
POD_MONITORS: Final = Kind("monitoring.coreos.com/v1", "PodMonitor", "podmonitors")
PROMETHEUS_RULES: Final = Kind("monitoring.coreos.com/v1", "PrometheusRule", "prometheusrules")
CERTIFICATES: Final = Kind("cert-manager.io/v1", "Certificate", "certificates")
GATEWAYS: Final = Kind(f"{GATEWAY_GROUP}/v1", "Gateway", "gateways")
TCP_ROUTES: Final = Kind(f"{GATEWAY_GROUP}/v1", "TCPRoute", "tcproutes")
TCP_ROUTES_V1ALPHA2: Final = Kind(f"{GATEWAY_GROUP}/v1alpha2", "TCPRoute", "tcproutes")
ROUTE_KINDS: Final = (TCP_ROUTES, TCP_ROUTES_V1ALPHA2)
"""The versions of TCPRoutes, the one to use first. Version v1 exists since release 1.6 of the Gateway API."""

PIPELINES: Final = tuple(Kind(API_VERSION, kind.name, kind.plural) for kind in PIPELINE_KINDS)
"""The kinds of pipelines: TopicArchive, LogAudit and TopicAnalytics."""

KINDS: Final = (
    *(GROUPS, PODS, NODES, CLAIMS, VOLUMES, SERVICES, SECRETS, CONFIG_MAPS, EVENTS, ACCOUNTS, STATEFUL_SETS, LEASES),
    *(SNAPSHOTS, BUDGETS, POLICIES, ROLES, ROLE_BINDINGS, POD_MONITORS, PROMETHEUS_RULES, JOBS, CRON_JOBS, DEPLOYMENTS),
    *(CERTIFICATES, GATEWAYS, *ROUTE_KINDS, *PIPELINES),
)
_BY_NAME: Final = {(kind.api_version, kind.name): kind for kind in KINDS}


class ObjectRef(NamedTuple):
    """A reference to an object: its kind, namespace and name."""

    kind: Kind
    namespace: str
    name: str

    def __str__(self) -> str:
        return (
            f"{self.kind.plural} {self.namespace}/{self.name}" if self.namespace else f"{self.kind.plural} {self.name}"
        )


class Kubernetes(Protocol):
    """The API server, or a fake of it in tests. Every call raises leaves of ``errors.ApiError``."""

    async def get(self, ref: ObjectRef) -> Object:
        """Read an object from the API server itself, not from a cache. Raises ``NotFound`` if it does not exist."""

    async def list(self, kind: Kind, namespace: str = "", labels: str = "") -> list[Object]:
        """List the objects of a kind, in one namespace or all of them, that match a label selector."""

    async def scan(self, kind: Kind, keep: Callable[[Object], T | None]) -> Kept[T]:
        """Read the objects of a kind in all namespaces page by page. Return what ``keep`` makes of each, except None.

        It is for kinds with many large objects, of which little is needed.
        """

    async def apply(self, document: Object) -> Object:
        """Create or change an object by server-side apply."""

    async def apply_status(self, ref: ObjectRef, status: Mapping[str, Any]) -> Object:
        """Change the status of an object by server-side apply."""

    async def patch(
        self, ref: ObjectRef, change: Mapping[str, Any], *, uid: str = "", revision: str = "", subresource: str = ""
    ) -> Object:
        """Change an object, or one of its subresources, by a merge patch: None removes a field."""

    async def create(self, document: Object) -> Object:
        """Create an object. Raises ``Conflict`` if it exists."""

    async def delete(self, ref: ObjectRef, *, uid: str, grace_s: int | None = None, is_orphaning: bool = False) -> None:
        """Delete the object with this uid; an object that does not exist counts as deleted.

        ``is_orphaning`` keeps the objects that it owns.
        """


def kind_of(document: Mapping[str, Any]) -> Kind:
    """Return the kind of a document, which must be in ``KINDS``."""
    return _BY_NAME[document["apiVersion"], document["kind"]]


def ref_of(document: Mapping[str, Any]) -> ObjectRef:
    """Return the reference to the object that a document describes."""
    metadata = document["metadata"]
    return ObjectRef(kind_of(document), metadata.get("namespace", ""), metadata["name"])


def manifest_of(document: Mapping[str, Any]) -> Object:
    """Return the part of a document that users write: everything except its status."""
    return {key: value for key, value in document.items() if key != "status"}


def uid_of(document: Mapping[str, Any]) -> str:
    """Return the uid of an object; empty if the API server has not created it yet."""
    return str(document["metadata"].get("uid", ""))


def owner_uids(document: Mapping[str, Any]) -> set[str]:
    """Return the uids of the owners of an object."""
    return {str(one.get("uid", "")) for one in document["metadata"].get("ownerReferences") or []}


def revision_of(document: Mapping[str, Any]) -> str:
    """Return the resourceVersion of an object."""
    return str(document["metadata"].get("resourceVersion", ""))


def labels_of(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels of an object."""
    return document["metadata"].get("labels") or {}


def annotations_of(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the annotations of an object."""
    return document["metadata"].get("annotations") or {}
