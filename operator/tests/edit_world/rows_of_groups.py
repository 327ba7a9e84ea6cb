"""Rows about groups: numbers of members, images, name servers, volumes, loss bounds, and access."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from edit_world.making import (
    ALERTS,
    ARGUMENTS,
    BROKER_SETS,
    CLAIM,
    CLIENT_ACCESS,
    CONFIG,
    CONFIG_MAP,
    GROUP_STATUS,
    NAME_SERVER,
    NO,
    OBJECT,
    POD,
    ROUTES,
    START_SETTINGS,
    STATUS,
    YES,
    creating,
    decision_row,
    deleting,
    edit_row,
    refused_row,
)
from edit_world.row import ABSENT, Effect, Fields, Row, Shown, Source, spec_part

ISSUED: Final[Fields] = {
    "access": {
        "certificates": {"issuer": "CertManager", "issuerRef": {"name": "first"}},
        "external": {"type": "None"},
    },
}
"""A spec with certificates of cert-manager. External addresses would be names in them, too, and rows that show external
access have clients without TLS."""

CERT_MANAGER_SECRET: Final = "orders-certificates"
"""The Secret that cert-manager writes for the Certificate of the same name."""

CERTIFICATE: Final = f"Certificate/{CERT_MANAGER_SECRET}"

OPEN: Final[Fields] = {"access": {"external": {"type": "NodePort"}}}
"""A spec with external access."""

THROUGH_GATEWAY: Final[Fields] = {"access": {"external": {"type": "Gateway", "gateway": {"name": "edge"}}}}
"""A spec whose external clients connect through a Gateway."""

SERVICES: Final = ("orders-0", "orders-0-master-0", "orders-0-slave-0", "orders-nameserver")
OUTER: Final = frozenset(f"Service/{name}-external" for name in SERVICES)
"""The Services for external clients."""

TCP_ROUTES: Final = frozenset(f"TCPRoute/{name}-external" for name in SERVICES)
"""The routes from a Gateway to them."""

OWN_NAME_SERVERS: Final = ";".join(f"orders-nameserver-{one}.orders-nameserver.shop.svc:9876" for one in (0, 1))
"""The addresses of the group's two name servers."""

MASTER_SET: Final = "StatefulSet/orders-0-master:spec"

CERTIFICATES: Final = {
    name: datetime(year, 1, 1, tzinfo=UTC) for name, year in (("certificates", 2035), ("renewed", 2036))
}
"""Secrets with certificates of one authority, and their expiry times."""


def wall_ms(moment: datetime) -> str:
    """Return the value as it is reported."""
    return str(int(moment.timestamp() * 1000))


def gateway_row(field: str, before: Any, after: Any) -> Row:
    """Return a row of a field of the Gateway, by which external clients connect elsewhere."""
    path = f"access.external.gateway.{field}"
    model = Shown(Source.MODEL, path, str(before), str(after))
    return edit_row(Effect.OBJECTS, path, before, after, TCP_ROUTES, model, prerequisites=THROUGH_GATEWAY)


COUNTS: Final = (
    edit_row(
        Effect.OBJECTS, "shards", 1, 2,
        CONFIG_MAP | creating(
            *(f"{kind}/orders-1" for kind in ("ConfigMap", "Role", "RoleBinding", "Service", "ServiceAccount")),
            *(f"Service/orders-1-{name}" for name in ("master", "slave", "master-0", "slave-0")),
            *("StatefulSet/orders-1-master", "StatefulSet/orders-1-slave", "PodDisruptionBudget/orders-1-slaves"),
        ),
        Shown(ARGUMENTS, "--peer", "1", "3"),
        Shown(GROUP_STATUS, "shards", "1", "2"),
        Shown(GROUP_STATUS, "ready", "1/1", "2/2"),
    ),
    edit_row(
        Effect.OBJECTS, "slaves", 1, 2, CONFIG_MAP | {"StatefulSet/orders-0-slave"} |
        creating("Service/orders-0-slave-1"), Shown(ARGUMENTS, "--peer", "1", "2"), Shown(GROUP_STATUS,
        "eachShard.0.inSync", "1", "2"),
    ),
    edit_row(
        Effect.ROLL, "image", "localhost/gantry:e2e", "localhost/gantry:next", BROKER_SETS | NAME_SERVER,
        Shown(POD, "spec.containers.0.image", "localhost/gantry:e2e", "localhost/gantry:next"),
        Shown(POD, "spec.initContainers.0.image", "localhost/gantry:e2e", "localhost/gantry:next"),
    ),
    edit_row(
        Effect.ROLL, "nameServers.replicas", 1, 2,
        START_SETTINGS | NAME_SERVER | creating("PodDisruptionBudget/orders-nameserver"),
        Shown(CONFIG, "namesrvAddr", OWN_NAME_SERVERS.partition(";")[0], OWN_NAME_SERVERS),
    ),
    Row(
        path="nameServers.addresses",
        before={},
        after={"nameServers": {"addresses": ["elsewhere.shop.svc:9876"]}},
        effect=Effect.ROLL,
        changes=START_SETTINGS | deleting(
            *(f"{kind}/orders-nameserver" for kind in ("NetworkPolicy", "PodDisruptionBudget", "Service")),
            "StatefulSet/orders-nameserver",
        ),
        shown=(
            Shown(CONFIG, "namesrvAddr", OWN_NAME_SERVERS, "elsewhere.shop.svc:9876"),
            Shown(OBJECT, "StatefulSet/orders-nameserver", YES, NO),
            Shown(OBJECT, "Service/orders-nameserver", YES, NO),
        ),
    ),
)  # fmt: skip
"""Rows about numbers of members, images and name servers."""

VOLUMES: Final = (
    edit_row(
        Effect.OBJECTS, "storage.size", "1Gi", "2Gi", BROKER_SETS,
        Shown(OBJECT, f"{MASTER_SET}.volumeClaimTemplates.0.spec.resources.requests.storage", "1Gi", "2Gi"),
        Shown(OBJECT, f"{CLAIM}:spec.resources.requests.storage", "1Gi", "2Gi"),
    ),
    refused_row("storage.size", "1Gi", "512Mi", "a volume can only grow", "storage.size: less"),
    refused_row("storage.storageClassName", "", "other", "the storage class of a volume cannot change"),
    edit_row(
        Effect.OBJECTS, "storage.retain", "Always", "Never", BROKER_SETS,
        Shown(OBJECT, f"{MASTER_SET}.persistentVolumeClaimRetentionPolicy.whenDeleted", "Retain", "Delete"),
        Shown(OBJECT, f"{CLAIM}:metadata.ownerReferences.0.kind", ABSENT, "StatefulSet"),
    ),
    edit_row(
        Effect.HOT, "storage.reservedTime", "72h", "48h", CONFIG_MAP,
        Shown(CONFIG, "fileReservedTime", "72", "48"),
    ),
    decision_row("storage.replaceAfter", "0s", "30s"),
    edit_row(
        Effect.HOT, "retention.local", "72h", "24h", CONFIG_MAP,
        Shown(CONFIG, "fileReservedTime", "72", "24"),
    ),
)  # fmt: skip

LOSS: Final = (
    decision_row("durability.maxAtRiskBytes", "64Mi", "1Ki", more=ALERTS),
    decision_row("durability.maxAtRisk", "1m", "1ms"),
    decision_row(
        "failover.mode", "Automatic", "Manual",
        Shown(GROUP_STATUS, "eachShard.0.decision.ifMasterDies?failover.mode is Manual", NO, YES),
    ),
    decision_row("failover.maxDataLossBytes", "0", "1Gi"),
    decision_row("failover.after", "5s", "30s"),
    decision_row("failover.switchback", False, True),
    decision_row("backup.schedule", "", "*/2 * * * *"),
    decision_row("backup.keep", 7, 1),
    decision_row("backup.snapshotClassName", "", "fast"),
)  # fmt: skip
"""Rows about limits of loss and about backups, which only decisions use."""


def certificate_row(path: str, before: Any, after: Any, key: str, was: str, becomes: str) -> Row:
    """Return a row of a field that only cert-manager uses."""
    shown = Shown(OBJECT, f"{CERTIFICATE}:spec.{key}", was, becomes)
    changes = frozenset({CERTIFICATE})
    return edit_row(Effect.OBJECTS, f"access.certificates.{path}", before, after, changes, shown, prerequisites=ISSUED)


ACCESS: Final = (
    edit_row(
        Effect.ROLL, "access.aclSecret", "", "accounts", START_SETTINGS | NAME_SERVER,
        Shown(CONFIG, "aclEnable", "false", "true"),
        Shown(CLIENT_ACCESS, "plain", YES, NO),
        prerequisites={"access": {"tlsSecret": ""}},
    ),
    edit_row(
        Effect.ROLL, "access.tlsSecret", "certificates", "renewed", BROKER_SETS | NAME_SERVER,
        Shown(STATUS, "certificate_ends_wall_ms", *(wall_ms(ends) for ends in CERTIFICATES.values())),
    ),
    refused_row("access.tlsSecret", "", "certificates", "TLS cannot be switched on or off",
            "access.tlsSecret: switched on"),
    refused_row("access.tlsSecret", "certificates", "", "TLS cannot be switched on or off",
            "access.tlsSecret: switched off"),
    refused_row("access.certificates.issuer", "None", "Operator", "TLS cannot be switched on or off",
            "access.certificates.issuer: switched on"),
    certificate_row("issuerRef.name", "first", "second", "issuerRef.name", "first", "second"),
    certificate_row("issuerRef.kind", "Issuer", "ClusterIssuer", "issuerRef.kind", "Issuer", "ClusterIssuer"),
    certificate_row(
        "issuerRef.group", "cert-manager.io", "issuers.example.com", "issuerRef.group", "cert-manager.io",
        "issuers.example.com",
    ),
    certificate_row("names", [], ["203.0.113.10"], "ipAddresses.0", ABSENT, "203.0.113.10"),
    edit_row(
        Effect.OBJECTS, "access.external.type", "None", "NodePort",
        creating(*OUTER) | NAME_SERVER | {"NetworkPolicy/orders-nameserver"},
        Shown(OBJECT, "Service/orders-0-external:spec.type", ABSENT, "NodePort"),
        Shown(ROUTES, "outside", NO, YES),
    ),
    Row(
        path="access.external.type",
        title="access.external.type: closed again",
        before=OPEN,
        after=spec_part("access.external.type", "None"),
        effect=Effect.OBJECTS,
        changes=deleting(*OUTER) | NAME_SERVER | {"NetworkPolicy/orders-nameserver"},
        shown=(
            Shown(OBJECT, "Service/orders-0-external", YES, NO),
            Shown(OBJECT, "Service/orders-nameserver-external", YES, NO),
            Shown(ROUTES, "outside", YES, NO),
        ),
    ),
    Row(
        path="access.external.type",
        title="access.external.type: from node ports to a Gateway",
        before=OPEN,
        after=spec_part("access.external.type", "Gateway"),
        prerequisites=spec_part("access.external.gateway.name", "edge"),
        effect=Effect.OBJECTS,
        changes=OUTER | creating(*TCP_ROUTES),
        shown=(Shown(OBJECT, "Service/orders-0-external:spec.type", "NodePort", "ClusterIP"),),
    ),
    Row(
        path="access.external.type",
        title="access.external.type: from a Gateway to load balancers",
        before=spec_part("access.external.type", "Gateway"),
        after=spec_part("access.external.type", "LoadBalancer"),
        prerequisites=spec_part("access.external.gateway.name", "edge"),
        effect=Effect.OBJECTS,
        changes=OUTER | deleting(*TCP_ROUTES),
        shown=(Shown(OBJECT, "Service/orders-0-external:spec.type", "ClusterIP", "LoadBalancer"),),
    ),
    gateway_row("name", "edge", "other"),
    gateway_row("namespace", "", "infra"),
    gateway_row("firstPort", 9876, 9900),
    Row(
        path="access.external.gateway.name",
        title="access.external.gateway.name: removed",
        before=spec_part("access.external.gateway.name", "edge"),
        after=spec_part("access.external.gateway.name", ""),
        prerequisites=spec_part("access.external.type", "Gateway"),
        effect=Effect.REFUSED,
        refusal="access.external.type Gateway needs access.external.gateway.name",
    ),
    edit_row(
        Effect.OBJECTS, "access.external.annotations", {}, {"team": "orders"}, OUTER,
        Shown(OBJECT, "Service/orders-0-external:metadata.annotations.team", ABSENT, "orders"),
        prerequisites=OPEN,
    ),
)  # fmt: skip
