"""The objects of a group's gRPC proxies, named `g-proxy` except the second Service; none if the spec has no proxies.

    ConfigMap        the settings with which a proxy starts; their hash is in the pod template, so an edit replaces pods
    Deployment       the pods. They keep no state, so a new one is ready before an old one stops
    Service          the address for clients: inside the cluster, at a node port, or at a load balancer
    g-proxy-pods     a headless Service with the pods, ready or not, whose figures the console shows
    ServiceAccount   has no rights, and its token is mounted nowhere
    budget, policy   evictions one at a time, and the connections that the network admits

    volume           mounted from             what the proxy reads there
    configuration    the ConfigMap            its settings
    accounts         `access.aclSecret`       the accounts of clients; also its own one, unless that is in `account`
    account          `credentialsSecret`      its own account
    authority        the group's `ca.crt`     the authority of brokers and name servers
    certificates     the Secret of its port   certificate and key, also the authority of clients; or a folder for the
                                              certificate that its pod issues for itself (`certificates`)

The proxy reloads all accounts and certificates while it runs. Only
the keys that it needs are mounted: where it has a certificate of its own, it cannot read the key of the brokers' one.

**Stopping.** After SIGTERM a proxy reports that it is not ready, and serves as before until no node sends new clients
to it. It then ends the streams of clients, which connect to another proxy, and waits for running calls. This needs no
`preStop` hook; the grace period of the pod is longer than all of it.

Resources that the API server refuses affect only the Deployment: the objects of brokers are applied all the same.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from gantry_operator.objects import certificates, configuration, names, pod_parts
from gantry_operator.objects.base import Object, hash_of, json_text, labels, make_object, selector
from gantry_operator.objects.facts import Facts
from gantry_spec.manifest.group import BrokerGroup, Spec
from gantry_spec.manifest.proxy import DRAIN_DELAY_MS, ProxyServiceType
from gantry_spec.manifest.quantities import size_text
from gantry_spec.proxy_settings import ProxyPlacement, proxy_settings

DEPLOYMENT: Final = ("apps/v1", "Deployment")
SETTINGS_FILE: Final = "proxy.yaml"
FOLDER: Final = "/etc/gantry/proxy"
"""The folder where the ConfigMap is mounted. The following paths are those in the pod, too."""

ACCOUNT: Final = "/etc/gantry/account"
AUTHORITY: Final = "/etc/gantry/authority"

CLIENT_BYTES: Final = 40 << 10
"""The memory of a connected client that waits."""

CALL_BYTES: Final = 20 << 10
"""The memory of a long poll, and of any other call without its message."""

BASE_BYTES: Final = 384 << 20
"""The memory of a proxy's process, with the 256 MiB at most of incomplete requests and unread replies."""

CPU_DEFAULT: Final = "100m"
"""The CPU request of a proxy where the spec sets none."""

DNS_PORTS: Final = (53, 5353)
"""The ports of DNS servers in pods; OpenShift's listen on the second one, which policies see behind its Service."""


def proxy_objects(group: BrokerGroup, facts: Facts) -> list[Object]:
    """Return all objects of the proxies, dependencies first; none if the spec has no proxies."""
    if not group.spec.proxy.replicas:
        return []
    found = [
        _policy(group, facts),
        _object(group, ("v1", "ServiceAccount"), {"automountServiceAccountToken": False}),
        _object(group, ("v1", "ConfigMap"), {"data": {SETTINGS_FILE: settings_text(group)}}),
        _service(group),
        _pods_service(group),
        _deployment(group, facts),
    ]
    return found + ([_budget(group)] if group.spec.proxy.replicas > 1 else [])


def endpoint(group: BrokerGroup) -> str:
    """Return host and port for clients inside the cluster; empty without proxies."""
    proxy, metadata = group.spec.proxy, group.metadata
    return f"{names.proxy_name(metadata.name)}.{metadata.namespace}.svc:{proxy.port}" if proxy.replicas else ""


# -- settings ----------------------------------------------------------------------------------------------------------


def settings_text(group: BrokerGroup) -> str:
    """Return the settings file of a proxy. It is JSON, which is YAML, too."""
    placement = ProxyPlacement(
        name_servers=configuration.name_servers(group),
        address=f"[::]:{names.PROXY_PORT}",
        http_address=f"[::]:{names.PROXY_HTTP_PORT}",
        drain_delay_ms=DRAIN_DELAY_MS,
        grace_ms=group.spec.proxy.template.calls_grace_ms,
        accounts=configuration.ACCOUNTS,
        account=ACCOUNT,
        authority=AUTHORITY,
        certificates=configuration.CERTIFICATES,
    )
    return json_text(proxy_settings(group.spec, placement))


# -- pods --------------------------------------------------------------------------------------------------------------


def _deployment(group: BrokerGroup, facts: Facts) -> Object:
    is_stopped = facts.is_hibernated and not any(sum(shard.replicas) for shard in facts.shards)
    body = {
        "replicas": 0 if is_stopped else group.spec.proxy.replicas,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": selector(group, names.PROXY)},
        "template": _template(group, facts),
    }
    return _object(group, DEPLOYMENT, {"spec": body})


def _template(group: BrokerGroup, facts: Facts) -> Object:
    """Return the pod template, with its hash, which contains that of the settings."""
    given = group.spec.proxy.template
    pod = pod_parts.pod_spec(
        facts,
        [_container(group, facts)],
        _volumes(group),
        serviceAccountName=names.proxy_name(group.metadata.name),
        terminationGracePeriodSeconds=-(-int(given.termination_grace_period) // 1000),
        topologySpreadConstraints=[
            pod_parts.zone_spread(group, names.PROXY, None),
            *given.topology_spread_constraints,
        ],
    )
    pod |= pod_parts.placement(given, _affinity(group))
    annotations = pod_parts.without_reserved(given.annotations)
    annotations |= {names.CONFIGURATION_ANNOTATION: hash_of(settings_text(group))}
    metadata: dict[str, Any] = {"labels": pod_parts.without_reserved(given.labels) | labels(group, names.PROXY)}
    mark = hash_of({"metadata": metadata | {"annotations": annotations}, "spec": pod})
    return {"metadata": metadata | {"annotations": annotations | {names.TEMPLATE_ANNOTATION: mark}}, "spec": pod}


def _container(group: BrokerGroup, facts: Facts) -> Object:
    ports = ((names.PROXY_PORT_NAME, names.PROXY_PORT), (names.PROXY_HTTP_PORT_NAME, names.PROXY_HTTP_PORT))
    mounts = [pod_parts.mount(volume, folder, is_read_only=True) for volume, folder, _ in _mounted(group)]
    command, variables = ["proxy", "--config", f"{FOLDER}/{SETTINGS_FILE}"], pod_parts.identity_variables()
    if _is_issuing(group):
        own = certificates.issue_arguments(group, certificates.proxy_hosts(group))
        command = ["pod", "proxy", *own, "--", *command[1:]]
        mounts += certificates.mounts(group, is_issuing=True)
        variables += certificates.variables(group)
    probe = partial(pod_parts.http_probe, port=names.PROXY_HTTP_PORT)
    return pod_parts.container(
        group,
        facts,
        names.PROXY,
        command,
        env=variables,
        ports=[{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in ports],
        resources=proxy_resources(group.spec),
        volumeMounts=[*mounts, pod_parts.tmp_mount()],
        startupProbe=probe("/livez", period_s=1, failures=60),
        livenessProbe=probe("/livez", period_s=10, failures=3),
        readinessProbe=probe("/readyz", period_s=2, failures=1),
    )


def _mounted(group: BrokerGroup) -> list[tuple[str, str, Object]]:
    """Return the volumes with their folders, except the temporary one: (name, folder, volume)."""
    spec, proxy = group.spec, group.spec.proxy
    name = names.proxy_name(group.metadata.name)
    found = [("configuration", FOLDER, {"name": "configuration", "configMap": {"name": name, "defaultMode": 0o444}})]
    if spec.access.acl_secret:
        keys = ["plain_acl.yml"] if proxy.credentials_secret else ["plain_acl.yml", "credentials"]
        volume = pod_parts.secret_volume("accounts", spec.access.acl_secret, *keys)
        found.append(("accounts", configuration.ACCOUNTS, volume))
    if proxy.credentials_secret:
        volume = pod_parts.secret_volume("account", proxy.credentials_secret, "credentials")
        found.append(("account", ACCOUNT, volume))
    if spec.access.has_tls:
        secret = certificates.authority_secret_of(group)
        found.append(("authority", AUTHORITY, pod_parts.secret_volume("authority", secret, "ca.crt")))
    if spec.has_proxy_tls and not _is_issuing(group):
        keys = ["tls.crt", "tls.key", *(["ca.crt"] if proxy.tls.requires_client_certificate else [])]
        secret = proxy.tls.secret or certificates.secret_of(group)
        volume = pod_parts.secret_volume("certificates", secret, *keys)
        found.append(("certificates", configuration.CERTIFICATES, volume))
    return found


def _is_issuing(group: BrokerGroup) -> bool:
    """Return whether each proxy issues a certificate for itself."""
    return group.spec.access.has_own_authority and not group.spec.proxy.tls.secret


def _volumes(group: BrokerGroup) -> list[Object]:
    found = [volume for _, _, volume in _mounted(group)]
    return found + certificates.volumes(group) if _is_issuing(group) else found


def _affinity(group: BrokerGroup) -> Object:
    """Return the user's affinity, and a preference for machines without another proxy of the group."""
    key = "preferredDuringSchedulingIgnoredDuringExecution"
    ours = pod_parts.anti_affinity(group, names.PROXY, None, is_required=False)["podAntiAffinity"][key]
    given = group.spec.proxy.template.affinity
    anti = dict(given.get("podAntiAffinity") or {})
    return {**given, "podAntiAffinity": anti | {key: [*ours, *(anti.get(key) or [])]}}


def proxy_resources(spec: Spec) -> Object:
    """Return the resources of a proxy's container. Memory that the spec does not set follows from its limits."""
    limits = spec.proxy.limits
    computed = BASE_BYTES + limits.clients * CLIENT_BYTES + limits.calls * CALL_BYTES
    memory = size_text(-(-computed // (1 << 20)) << 20)
    return pod_parts.with_defaults(spec.proxy.resources, memory, CPU_DEFAULT)


# -- network and disruption --------------------------------------------------------------------------------------------


def _service(group: BrokerGroup) -> Object:
    """Return the Service. It has only proxies that are ready, so one that stops gets no new clients."""
    proxy, service = group.spec.proxy, group.spec.proxy.service
    body: Object = {
        "type": str(service.type),
        "selector": selector(group, names.PROXY),
        "ports": [
            {
                "name": names.PROXY_PORT_NAME,
                "port": proxy.port,
                "targetPort": names.PROXY_PORT,
                "protocol": "TCP",
                "appProtocol": "grpc",
            }
        ],
    }
    if service.type is not ProxyServiceType.CLUSTER_IP:
        body["externalTrafficPolicy"] = "Cluster"
    if service.load_balancer_class:
        body["loadBalancerClass"] = service.load_balancer_class
    if service.load_balancer_source_ranges:
        body["loadBalancerSourceRanges"] = list(service.load_balancer_source_ranges)
    more = {"annotations": dict(service.annotations)} if service.annotations else {}
    return _object(group, ("v1", "Service"), {"spec": body}, **more)


def _pods_service(group: BrokerGroup) -> Object:
    """Return the headless Service by which sidecars find the pods of all proxies, also of those that are not ready."""
    body: Object = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": selector(group, names.PROXY),
        "ports": [{"name": names.PROXY_HTTP_PORT_NAME, "port": names.PROXY_HTTP_PORT, "protocol": "TCP"}],
    }
    name = names.proxy_pods_name(group.metadata.name)
    return make_object(group, ("v1", "Service"), name, labels(group, names.PROXY), {"spec": body})


def _policy(group: BrokerGroup, facts: Facts) -> Object:
    """Return the network policy. It admits these connections, if the cluster's network enforces policies:

        to a proxy      clients from anywhere; Prometheus and sidecars of the group to the port for metrics
        from a proxy    the brokers and name servers of the group, and DNS at any address

    If the group uses other name servers, connections from a proxy are not limited: the addresses of these servers, and
    of other brokers that register there, are not known here.
    """
    prometheus = {"namespaceSelector": {}, "podSelector": {"matchLabels": dict(facts.prometheus_labels)}}
    sidecars = {"podSelector": {"matchLabels": selector(group, names.BROKER)}}
    body: Object = {
        "podSelector": {"matchLabels": selector(group, names.PROXY)},
        "policyTypes": ["Ingress"],
        "ingress": [
            {"ports": _policy_ports(names.PROXY_PORT)},
            {"ports": _policy_ports(names.PROXY_HTTP_PORT), "from": [prometheus, sidecars]},
        ],
    }
    if group.spec.name_servers.count:
        brokers, servers = (
            [{"podSelector": {"matchLabels": selector(group, component)}}]
            for component in (names.BROKER, names.NAME_SERVER)
        )
        dns = [{"protocol": protocol, "port": port} for port in DNS_PORTS for protocol in ("UDP", "TCP")]
        body["policyTypes"] = ["Ingress", "Egress"]
        body["egress"] = [
            {"ports": _policy_ports(names.BROKER_PORT, names.FAST_PORT), "to": brokers},
            {"ports": _policy_ports(names.NAME_SERVER_PORT), "to": servers},
            {"ports": dns},
        ]
    return _object(group, ("networking.k8s.io/v1", "NetworkPolicy"), {"spec": body})


def _policy_ports(*ports: int) -> list[Object]:
    return [{"protocol": "TCP", "port": port} for port in ports]


def _budget(group: BrokerGroup) -> Object:
    """Return the disruption budget, which no broker is in: its selector has another component."""
    body = {
        "selector": {"matchLabels": selector(group, names.PROXY)},
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    return _object(group, ("policy/v1", "PodDisruptionBudget"), {"spec": body})


def _object(group: BrokerGroup, kind: tuple[str, str], body: Object, **metadata: Any) -> Object:
    """Return an object of the proxies."""
    return make_object(group, kind, names.proxy_name(group.metadata.name), labels(group, names.PROXY), body, **metadata)
