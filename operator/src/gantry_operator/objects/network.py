"""Who may come to which port. What is not said here is refused, where the cluster's network enforces policies.

    from                      broker 10911 10909   replication 10912   sidecar 8080   log 8081   name server 9876
    everybody in the cluster  yes                  -                   -              -          yes
    brokers of the group      yes                  yes                 yes            yes        yes
    pipelines that read it    yes                  -                   yes            yes        yes
    the operator              yes                  -                   yes            -          yes
    Prometheus                -                    -                   yes            -          -
    outside, if asked for     broker 10911, and the outer listener of name servers, 9886

Pipelines are pods of the group's namespace with the label `reads.gantry.dev/GROUP`; they show the token for reading.
Kubelet's probes come from the machine itself, which policies do not stop. What leaves pods is not limited: name servers
elsewhere, the cluster's DNS and API server have addresses that nobody can know here.
"""

from __future__ import annotations

from typing import Any

from gantry_operator.objects import names
from gantry_operator.objects.base import Object, labels, made, selector
from gantry_operator.objects.facts import Facts
from gantry_spec.manifest.group import BrokerGroup
from gantry_spec.manifest.parts import ExternalType

POLICY = ("networking.k8s.io/v1", "NetworkPolicy")
NAMESPACE_LABEL = "kubernetes.io/metadata.name"


def policies(group: BrokerGroup, facts: Facts) -> list[Object]:
    """Of the whole group."""
    found = [_policy(group, names.BROKER, _to_brokers(group, facts))]
    if group.spec.name_servers.count:
        is_open = group.spec.access.external.type is not ExternalType.NONE
        ports = [names.NAME_SERVER_PORT, *([names.OUTER_NAME_SERVER_PORT] if is_open else [])]
        found.append(_policy(group, names.NAME_SERVER, [_rule([], ports)]))
    return found


def _to_brokers(group: BrokerGroup, facts: Facts) -> list[Object]:
    brokers = {"podSelector": {"matchLabels": selector(group, names.BROKER)}}
    readers = {"podSelector": {"matchLabels": {names.reads_label(group.metadata.name): "true"}}}
    operator = {
        "namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: facts.operator_namespace}},
        "podSelector": {"matchLabels": dict(facts.operator_labels)},
    }
    prometheus = {"namespaceSelector": {}, "podSelector": {"matchLabels": dict(facts.prometheus_labels)}}
    return [
        _rule([], [names.BROKER_PORT, names.FAST_PORT]),
        _rule([brokers], [names.REPLICATION_PORT, names.SIDECAR_PORT, names.LOG_PORT]),
        _rule([readers], [names.SIDECAR_PORT, names.LOG_PORT]),
        _rule([operator, prometheus], [names.SIDECAR_PORT]),
    ]


def _rule(sources: list[Object], ports: list[int]) -> Object:
    """Without sources: from everywhere."""
    rule: dict[str, Any] = {"ports": [{"protocol": "TCP", "port": port} for port in ports]}
    return rule | ({"from": sources} if sources else {})


def _policy(group: BrokerGroup, component: str, ingress: list[Object]) -> Object:
    body = {
        "podSelector": {"matchLabels": selector(group, component)},
        "policyTypes": ["Ingress"],
        "ingress": ingress,
    }
    return made(group, POLICY, f"{group.metadata.name}-{component}", labels(group, component), {"spec": body})
