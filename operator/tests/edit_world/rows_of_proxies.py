"""Rows about the gRPC proxies of a group: no edit of them changes an object of brokers."""

from __future__ import annotations

from typing import Any, Final

from edit_world.making import ALERTS, GROUP_STATUS, NO, NOTHING, OBJECT, YES, creating, deleting, edit_row
from edit_world.row import ABSENT, Effect, Fields, Row, Shown, merged, spec_part
from edit_world.rows_of_brokers import ON_FAST_DISKS

ONE_PROXY: Final[Fields] = {"proxy": {"replicas": 1}}
BALANCED: Final = spec_part("proxy.service.type", "LoadBalancer")
PROXY: Final = "orders-proxy"
"""The name of all objects of the proxies but the headless Service."""

OWN_KINDS: Final = ("ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service", "ServiceAccount")
OBJECTS: Final = (*(f"{kind}/{PROXY}" for kind in OWN_KINDS), f"Service/{PROXY}-pods")
DEPLOYMENT: Final = frozenset({f"Deployment/{PROXY}"})
SETTINGS: Final = DEPLOYMENT | {f"ConfigMap/{PROXY}"}
"""The objects that an edit of a setting changes: the file, and the template with its hash."""

SERVICE: Final = frozenset({f"Service/{PROXY}"})
MONITORED: Final = ALERTS | {"PodMonitor/orders"}
"""The objects of monitoring, which a group has once."""

FILE: Final = f"ConfigMap/{PROXY}:data"
PODS: Final = f"Deployment/{PROXY}:spec.template"
CONTAINER: Final = f"{PODS}.spec.containers.0"


def proxy_row(
    path: str, before: Any, after: Any, changes: frozenset[str], *shown: Shown, more: Fields = NOTHING
) -> Row:
    """Return a row of a field of a group that has a proxy before and after; ``more`` are other fields that it needs."""
    prerequisites = merged(ONE_PROXY, more)
    return edit_row(Effect.OBJECTS, f"proxy.{path}", before, after, changes, *shown, prerequisites=prerequisites)


def setting_row(path: str, before: Any, after: Any, key: str, was: str, becomes: str) -> Row:
    """Return a row of a field that a proxy reads from its settings file, with a text of the file before and after."""
    texts = [f'{FILE}?"{key}": {value}' for value in (was, becomes)]
    shown = (Shown(OBJECT, texts[0], YES, NO), Shown(OBJECT, texts[1], NO, YES))
    return proxy_row(path, before, after, SETTINGS, *shown)


def template_row(field: str, before: Any, after: Any, key: str, was: str, becomes: str) -> Row:
    """Return a row of a setting that is copied into the pods of proxies."""
    return proxy_row(f"template.{field}", before, after, DEPLOYMENT, Shown(OBJECT, f"{PODS}.{key}", was, becomes))


REPLICAS: Final = (
    edit_row(
        Effect.OBJECTS, "proxy.replicas", 0, 2, creating(*OBJECTS) | MONITORED,
        Shown(OBJECT, f"Deployment/{PROXY}:spec.replicas", ABSENT, "2"),
        Shown(OBJECT, f"Service/{PROXY}", NO, YES),
        Shown(GROUP_STATUS, "proxy.desired", "0", "2"),
    ),
    Row(
        path="proxy.replicas",
        title="proxy.replicas: none any more",
        before=spec_part("proxy.replicas", 2),
        after=spec_part("proxy.replicas", 0),
        effect=Effect.OBJECTS,
        changes=deleting(*OBJECTS) | MONITORED,
        shown=tuple(Shown(OBJECT, name, YES, NO) for name in OBJECTS),
    ),
)  # fmt: skip

ADDRESSES: Final = (
    proxy_row("port", 8081, 443, SERVICE, Shown(OBJECT, f"Service/{PROXY}:spec.ports.0.port", "8081", "443")),
    proxy_row(
        "service.type", "ClusterIP", "NodePort", SERVICE,
        Shown(OBJECT, f"Service/{PROXY}:spec.type", "ClusterIP", "NodePort"),
    ),
    proxy_row(
        "service.annotations", {}, {"team": "orders"}, SERVICE,
        Shown(OBJECT, f"Service/{PROXY}:metadata.annotations.team", ABSENT, "orders"),
    ),
    Row(
        path="proxy.service.loadBalancerClass",
        before=spec_part("proxy.service.loadBalancerClass", "example.com/inner"),
        after=spec_part("proxy.service.loadBalancerClass", "example.com/outer"),
        effect=Effect.REFUSED,
        refusal="the class of a load balancer cannot change",
        prerequisites=merged(ONE_PROXY, BALANCED),
    ),
    proxy_row(
        "service.loadBalancerSourceRanges", [], ["203.0.113.0/24"], SERVICE,
        Shown(OBJECT, f"Service/{PROXY}:spec.loadBalancerSourceRanges.0", ABSENT, "203.0.113.0/24"),
        more=BALANCED,
    ),
)  # fmt: skip

ACCESS: Final = (
    proxy_row(
        "tls.secret", "", "certificates", SETTINGS,
        Shown(OBJECT, f"{PODS}.spec.volumes?'secretName': 'certificates'", NO, YES),
    ),
    proxy_row(
        "tls.requiresClientCertificate", False, True, SETTINGS,
        Shown(OBJECT, f"{FILE}?clientAuthority", NO, YES),
        more={"proxy": {"tls": {"secret": "certificates"}}},
    ),
    proxy_row(
        "credentialsSecret", "", "proxy-account", SETTINGS,
        Shown(OBJECT, f"{PODS}.spec.volumes?'secretName': 'proxy-account'", NO, YES),
        more={"access": {"aclSecret": "accounts", "external": {"type": "None"}}},  # clients outside have no account
    ),
)  # fmt: skip

LIMITS: Final = (
    proxy_row(
        "limits.clients", 5_000, 100, SETTINGS,
        Shown(OBJECT, f"{CONTAINER}.resources.limits.memory", "873Mi", "681Mi"),
    ),
    setting_row("limits.calls", 15_000, 20_000, "callsMax", "15000", "20000"),
    setting_row("limits.connections", 7_500, 100, "connectionsMax", "7500", "100"),
    setting_row("limits.callsPerClient", 512, 10, "callsPerClientMax", "512", "10"),
    setting_row("limits.inFlightMessagesPerClient", 20_000, 10, "inFlightMessagesPerClientMax", "20000", "10"),
    setting_row("limits.messageSize", "4Mi", "1Mi", "messageBytesMax", "4194304", "1048576"),
    setting_row("limits.longPoll", "20s", "10s", "pollMsMax", "20000", "10000"),
    setting_row("limits.invisibleTime", "12h", "1h", "invisibleMsMax", "43200000", "3600000"),
)  # fmt: skip

PODS_OF_PROXIES: Final = (
    proxy_row(
        "resources", {}, {"limits": {"memory": "1Gi"}}, DEPLOYMENT,
        Shown(OBJECT, f"{CONTAINER}.resources.requests.memory", "873Mi", "1Gi"),
    ),
    template_row("annotations", {}, {"team": "orders"}, "metadata.annotations.team", ABSENT, "orders"),
    template_row("labels", {}, {"team": "orders"}, "metadata.labels.team", ABSENT, "orders"),
    template_row("nodeSelector", {}, {"disk": "fast"}, "spec.nodeSelector.disk", ABSENT, "fast"),
    template_row(
        "tolerations", [], [{"key": "dedicated", "operator": "Exists"}], "spec.tolerations?dedicated", NO, YES
    ),
    template_row("affinity", {}, ON_FAST_DISKS, "spec.affinity.nodeAffinity?fast", NO, YES),
    template_row(
        "topologySpreadConstraints", [],
        [{"maxSkew": 1, "topologyKey": "disk", "whenUnsatisfiable": "ScheduleAnyway"}],
        "spec.topologySpreadConstraints?'topologyKey': 'disk'", NO, YES,
    ),
    template_row("priorityClassName", "", "orders-first", "spec.priorityClassName", ABSENT, "orders-first"),
    template_row("runtimeClassName", "", "sandboxed", "spec.runtimeClassName", ABSENT, "sandboxed"),
    proxy_row(
        "template.terminationGracePeriod", "45s", "1m", SETTINGS,
        Shown(OBJECT, f"{PODS}.spec.terminationGracePeriodSeconds", "45", "60"),
    ),
)  # fmt: skip

PROXIES: Final = (*REPLICAS, *ADDRESSES, *ACCESS, *LIMITS, *PODS_OF_PROXIES)
