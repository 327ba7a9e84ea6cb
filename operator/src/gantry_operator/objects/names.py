"""What everything is called, and which member of a shard a pod is. A name, once given, is never given to anything else.

    g-0-master      StatefulSet, 1 pod: g-0-master-0, member 1
    g-0-slave       StatefulSet: g-0-slave-0 is member 2, g-0-slave-1 member 3, ...
    g-0             Service of whoever is master now, ConfigMap, Lease, ServiceAccount, Role

The StatefulSets' names say where the roles belong; where they are now is the label ``gantry.dev/role`` of pods, which
only the operator writes. It is in no selector and no template of a StatefulSet, or moving a role would move pods.
"""

from __future__ import annotations

from typing import Final

from gantry_spec.cluster_objects import BROKER as BROKER
from gantry_spec.cluster_objects import COMPONENT_LABEL as COMPONENT_LABEL
from gantry_spec.cluster_objects import GROUP_LABEL as GROUP_LABEL
from gantry_spec.cluster_objects import NAME_SERVER as NAME_SERVER
from gantry_spec.cluster_objects import ROLE_LABEL as ROLE_LABEL
from gantry_spec.cluster_objects import PodPlace as PodPlace
from gantry_spec.cluster_objects import member_of as member_of
from gantry_spec.cluster_objects import member_pod as member_pod
from gantry_spec.cluster_objects import shard_name as shard_name
from gantry_spec.manifest.group import API_GROUP

SHARD_LABEL: Final = f"{API_GROUP}/shard"
MEMBER_LABEL: Final = f"{API_GROUP}/member"
HOME_LABEL: Final = f"{API_GROUP}/home"
"""Of the StatefulSet that a pod belongs to, and is never taken out of."""
TEMPLATE_ANNOTATION: Final = f"{API_GROUP}/template"
ASLEEP_ANNOTATION: Final = f"{API_GROUP}/asleep"
"""Of a StatefulSet that makes no pods because its group hibernates: how many it makes when that is over."""

POD_NAME_LABEL: Final = "statefulset.kubernetes.io/pod-name"
READS_PREFIX: Final = f"reads.{API_GROUP}/"
OUR_PREFIXES: Final = (
    f"{API_GROUP}/",
    READS_PREFIX,
    "app.kubernetes.io/",
    "statefulset.kubernetes.io/",
    "apps.kubernetes.io/",
)
"""Of labels and annotations that a template may not set."""

MASTER_ROLE: Final = "master"
SLAVE_ROLE: Final = "slave"

BROKER_PORT: Final = 10911
FAST_PORT: Final = 10909
REPLICATION_PORT: Final = 10912
ALIVE_PORT: Final = 10913
NAME_SERVER_PORT: Final = 9876
SIDECAR_PORT: Final = 8080
LOG_PORT: Final = 8081
OUTER_NAME_SERVER_PORT: Final = 9886
"""Where clients from outside of the cluster ask, and are told brokers' outer addresses."""


def master_set(group: str, shard: int) -> str:
    """Of the StatefulSet, and of its headless Service."""
    return f"{group}-{shard}-master"


def slave_set(group: str, shard: int) -> str:
    """Of the StatefulSet, and of its headless Service."""
    return f"{group}-{shard}-slave"


def name_server_set(group: str) -> str:
    """Of the StatefulSet, and of its headless Service."""
    return f"{group}-nameserver"


def secret_name(group: str) -> str:
    """Of the Secret with what is secret inside of the group."""
    return f"{group}-sidecar"


def reads_label(group: str) -> str:
    """Of pods that are no brokers and read a group's sidecars: its policy lets them in."""
    return f"{READS_PREFIX}{group}"


def external_name(service: str) -> str:
    """Of the Service for clients from outside, beside the one for those inside."""
    return f"{service}-external"


def member_host(group: str, namespace: str, shard: int, member: int) -> str:
    """The name under which a member's pod is found itself, whatever its role and readiness."""
    service = master_set(group, shard) if member == 1 else slave_set(group, shard)
    return f"{member_pod(group, shard, member)}.{service}.{namespace}.svc"


def name_server_addresses(group: str, namespace: str, count: int) -> tuple[str, ...]:
    """Each name server of the group by itself: a broker registers at all of them."""
    name = name_server_set(group)
    return tuple(f"{name}-{ordinal}.{name}.{namespace}.svc:{NAME_SERVER_PORT}" for ordinal in range(count))
