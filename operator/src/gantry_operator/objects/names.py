"""The names of all objects, and the member that a pod is. A name is never reused for anything else.

    g-0-master      StatefulSet, 1 pod: g-0-master-0, member 1
    g-0-slave       StatefulSet: g-0-slave-0 is member 2, g-0-slave-1 member 3, ...
    g-0             Service of the present master, ConfigMap, Lease, ServiceAccount, Role, RoleBinding
    g-proxy         Deployment of the gRPC proxies, Service, ConfigMap, ServiceAccount, budget and policy
    g-authority     Secret and ConfigMap of the group's own certificate authority
    g-certificates  Certificate of cert-manager, and its Secret
    g-proxy-pods    headless Service of the proxies' pods
    g-archive-server    Deployment of the archive server, Secret, Service, ConfigMap, ServiceAccount, budget and policy

The names of StatefulSets show the initial roles. The present role is the label ``gantry.dev/role`` of a pod, which only
the operator writes. No selector or template of a StatefulSet contains it, or moving a role would replace pods.
"""

from __future__ import annotations

from typing import Final

from gantry_spec.cluster_objects import BROKER as BROKER
from gantry_spec.cluster_objects import COMPONENT_LABEL as COMPONENT_LABEL
from gantry_spec.cluster_objects import GROUP_LABEL as GROUP_LABEL
from gantry_spec.cluster_objects import NAME_SERVER as NAME_SERVER
from gantry_spec.cluster_objects import POD_NAME_LABEL as POD_NAME_LABEL
from gantry_spec.cluster_objects import PROXY as PROXY
from gantry_spec.cluster_objects import PROXY_HTTP_PORT as PROXY_HTTP_PORT
from gantry_spec.cluster_objects import ROLE_LABEL as ROLE_LABEL
from gantry_spec.cluster_objects import PodPlace as PodPlace
from gantry_spec.cluster_objects import member_of as member_of
from gantry_spec.cluster_objects import member_pod as member_pod
from gantry_spec.cluster_objects import proxy_name as proxy_name
from gantry_spec.cluster_objects import proxy_pods_name as proxy_pods_name
from gantry_spec.cluster_objects import shard_name as shard_name
from gantry_spec.manifest.group import API_GROUP
from gantry_status.broker_ports import BROKER_PORT as BROKER_PORT
from gantry_status.broker_ports import fast_port_of, replication_port_of

SHARD_LABEL: Final = f"{API_GROUP}/shard"
MEMBER_LABEL: Final = f"{API_GROUP}/member"
HOME_LABEL: Final = f"{API_GROUP}/home"
"""The label with the name of the StatefulSet that a pod belongs to, which never changes."""
TEMPLATE_ANNOTATION: Final = f"{API_GROUP}/template"
"""The annotation of a pod with the hash of its template."""

RESOURCES_ANNOTATION: Final = f"{API_GROUP}/resources"
"""The annotation of a pod with the CPU and memory of its broker for which it was made, or resized."""

RESIZING_ANNOTATION: Final = f"{API_GROUP}/resizing"
"""The annotation of a pod with the CPU and memory that its broker is getting while it runs."""

CONFIGURATION_ANNOTATION: Final = f"{API_GROUP}/configuration"
"""The annotation of a proxy's pod with the hash of the settings in its ConfigMap."""

HIBERNATED_REPLICAS_ANNOTATION: Final = f"{API_GROUP}/hibernated-replicas"
"""The annotation of a hibernated StatefulSet: how many pods it creates after the hibernation."""
FORMER_HIBERNATED_REPLICAS_ANNOTATION: Final = f"{API_GROUP}/asleep"
"""The name of the annotation in earlier versions: read and removed, never written."""

PIPELINE_LABEL: Final = f"{API_GROUP}/pipeline"
"""The label of a pipeline's objects and pods with their common name."""

NAMESPACE_LABEL: Final = "kubernetes.io/metadata.name"
"""The label of a namespace with its own name."""

READS_PREFIX: Final = f"reads.{API_GROUP}/"
"""The prefix of the labels of pods that read from a group (``reads_label``)."""

OUR_PREFIXES: Final = (
    f"{API_GROUP}/",
    READS_PREFIX,
    "app.kubernetes.io/",
    "statefulset.kubernetes.io/",
    "apps.kubernetes.io/",
)
"""The prefixes of labels and annotations that a user's template cannot set."""

CERTIFICATES: Final = "certificates"
"""The component of the objects with the certificates of all pods."""

ARCHIVE_SERVER: Final = "archive-server"
"""The component of the objects of the archive server. No pipeline's name ends like this."""

MASTER_ROLE: Final = "master"
SLAVE_ROLE: Final = "slave"

FAST_PORT: Final = fast_port_of(BROKER_PORT)
"""The second port of a broker, on which clients reach it, too."""

REPLICATION_PORT: Final = replication_port_of(BROKER_PORT)
ALIVE_PORT: Final = 10913
"""The port of the supervisor of a broker or name server, for the liveness probe."""

NAME_SERVER_PORT: Final = 9876
SIDECAR_PORT: Final = 8080
"""The port of a sidecar for its HTTP API."""

LOG_PORT: Final = 8081
"""The port of a sidecar from which ranges of the log are read."""

PROXY_PORT: Final = 8081
"""The port of a proxy in its pod. Clients use the Service's port, which may be another one."""

PROXY_PORT_NAME: Final = "grpc"
"""The name of the port for clients, in a proxy's pod and in the Service."""

PROXY_HTTP_PORT_NAME: Final = "metrics"
"""The name of the port for probes and metrics in a proxy's pod, by which Prometheus finds it."""

ARCHIVE_PORT: Final = 10915
"""The port of an archive server, for brokers."""

ARCHIVE_PAGE_PORT: Final = 8090
"""The port of an archive server for probes and its report."""

EXTERNAL_NAME_SERVER_PORT: Final = 9886
"""The port of name servers for clients outside of the cluster; it returns the brokers' external addresses."""


def master_set(group: str, shard: int) -> str:
    """Return the name of the master's StatefulSet, and of its headless Service."""
    return f"{group}-{shard}-master"


def slave_set(group: str, shard: int) -> str:
    """Return the name of the slaves' StatefulSet, and of its headless Service."""
    return f"{group}-{shard}-slave"


def name_server_set(group: str) -> str:
    """Return the name of the name servers' StatefulSet, and of its headless Service."""
    return f"{group}-nameserver"


def secret_name(group: str) -> str:
    """Return the name of the Secret with the tokens of the group."""
    return f"{group}-sidecar"


def authority_name(group: str) -> str:
    """Return the name of the Secret and of the ConfigMap of the group's own certificate authority."""
    return f"{group}-authority"


def certificate_name(group: str) -> str:
    """Return the name of the group's Certificate, and of the Secret that cert-manager writes for it."""
    return f"{group}-certificates"


def archive_server_name(group: str) -> str:
    """Return the name of the objects of a group's archive server."""
    return f"{group}-{ARCHIVE_SERVER}"


def archive_server_host(group: str, namespace: str) -> str:
    """Return the host name by which brokers reach the archive server, and for which its certificate is."""
    return f"{archive_server_name(group)}.{namespace}.svc"


def reads_label(group: str) -> str:
    """Return the label of pods that read from the sidecars of a group, and that its network policy admits."""
    return f"{READS_PREFIX}{group}"


def external_name(service: str) -> str:
    """Return the name of the Service for external clients that belongs to a Service for internal ones."""
    return f"{service}-external"


def member_host(group: str, namespace: str, shard: int, member: int) -> str:
    """Return the host name of a member's pod, which does not depend on its role and readiness."""
    service = master_set(group, shard) if member == 1 else slave_set(group, shard)
    return f"{member_pod(group, shard, member)}.{service}.{namespace}.svc"


def name_server_addresses(group: str, namespace: str, count: int) -> tuple[str, ...]:
    """Return the address of each name server of the group: a broker registers at all of them."""
    name = name_server_set(group)
    return tuple(f"{name}-{ordinal}.{name}.{namespace}.svc:{NAME_SERVER_PORT}" for ordinal in range(count))
