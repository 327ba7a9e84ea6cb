"""The rules that enforce a policy on the nodes: what the policy admits passes, and nothing else of its pods."""

from __future__ import annotations

from typing import Any

from gantry_cluster.cluster import Plan
from gantry_cluster.network_policies import policy_rules

PODS: dict[str, list[tuple[dict[str, str], str]]] = {
    "/api/v1/namespaces/shop/pods": [
        ({"app": "proxy"}, "10.0.0.1"),
        ({"app": "broker"}, "10.0.0.2"),
        ({"app": "broker"}, ""),
    ],
    "/api/v1/pods": [({"app": "proxy"}, "10.0.0.1"), ({"app": "prometheus"}, "10.0.0.9")],
}


class FakeNamespace:
    """A namespace with these pods, and the API of its cluster."""

    def __init__(self) -> None:
        self.cluster = self
        self.api = self
        self.plan = Plan()

    def path(self, kind: str) -> str:
        return f"/api/v1/namespaces/shop/{kind}"

    def items(self, path: str) -> list[dict[str, Any]]:
        return [{"metadata": {"labels": labels}, "status": {"podIP": ip}} for labels, ip in PODS[path]]


def test_policy_admits_its_peers_and_drops_the_rest() -> None:
    """Rules of both directions come in the order of the policy, and each direction ends with a drop."""
    namespace: Any = FakeNamespace()
    broker = {"podSelector": {"matchLabels": {"app": "broker"}}}
    prometheus = {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "prometheus"}}}
    spec = {
        "podSelector": {"matchLabels": {"app": "proxy"}},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [
            {"ports": [{"protocol": "TCP", "port": 8081}]},
            {"ports": [{"protocol": "TCP", "port": 9081}], "from": [prometheus]},
        ],
        "egress": [{"ports": [{"protocol": "UDP", "port": 53}], "to": [broker]}],
    }

    first, *rules = [" ".join(rule) for rule in policy_rules(namespace, spec)]

    assert "ESTABLISHED" in first
    assert rules == [
        "-d 10.0.0.1 -s 0.0.0.0/0 -p tcp --dport 8081 -j RETURN",
        "-d 10.0.0.1 -s 10.0.0.9 -p tcp --dport 9081 -j RETURN",
        "-d 10.0.0.1 -j DROP",
        "-s 10.0.0.1 -d 10.0.0.2 -p udp --dport 53 -j RETURN",
        "-s 10.0.0.1 -j DROP",
    ]


def test_direction_that_the_policy_does_not_name_is_open() -> None:
    """The twin: without its type in the policy, a direction has no rule at all."""
    namespace: Any = FakeNamespace()
    spec = {"podSelector": {"matchLabels": {"app": "proxy"}}, "policyTypes": ["Ingress"], "ingress": []}

    assert [" ".join(rule) for rule in policy_rules(namespace, spec)[1:]] == ["-d 10.0.0.1 -j DROP"]
