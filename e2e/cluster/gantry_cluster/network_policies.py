"""Enforcement of one NetworkPolicy on the nodes, since the network of this cluster enforces none.

The pods that the policy selects get rules by their present addresses, in the table that every forwarded packet passes,
also between two pods of a node. Probes of kubelet come from the node itself, and pass another chain, as in a cluster
that enforces policies. Pods that appear later are not protected: keep the pods as they are during the context.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from gantry_cluster.cluster import Cluster
from gantry_cluster.groups import Group
from gantry_cluster.pods import Namespace
from gantry_cluster.reports import find_object

CHAIN: Final = "GANTRY-POLICY"
Rule = tuple[str, ...]
"""The words of a rule after the name of its chain."""


@contextmanager
def enforce(group: Group, name: str) -> Iterator[None]:
    """Enforce a policy of the group's namespace on all nodes during the context."""
    policy = find_object(group, "NetworkPolicy", name)
    assert policy is not None, f"the namespace has no NetworkPolicy {name}"
    rules = policy_rules(group.namespace, policy["spec"])
    cluster = group.namespace.cluster
    with ExitStack() as end:
        for node in cluster.nodes:
            end.enter_context(_enforce_on(cluster, node, rules))
        yield


@contextmanager
def _enforce_on(cluster: Cluster, node: str, rules: list[Rule]) -> Iterator[None]:
    machine, iptables = cluster.machines[node], (cluster.plan.network.iptables, "--wait")
    machine.run(*iptables, "-N", CHAIN)
    try:
        for rule in rules:
            machine.run(*iptables, "-A", CHAIN, *rule)
        machine.run(*iptables, "-I", "FORWARD", "-j", CHAIN)
        yield
    finally:
        program = " ".join(iptables)
        machine.run("sh", "-c", f"{program} -D FORWARD -j {CHAIN}; {program} -F {CHAIN}")
        machine.run(*iptables, "-X", CHAIN)


def policy_rules(namespace: Namespace, spec: Mapping[str, Any]) -> list[Rule]:
    """Return the rules of a policy: replies first, then what is admitted, then everything else of the pods."""
    rules: list[Rule] = [("-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "-j", "RETURN")]
    pods = addresses(namespace, spec["podSelector"])
    assert pods, "the policy selects no pod"
    for pod in pods:
        for kind, own, other, key in (("ingress", "-d", "-s", "from"), ("egress", "-s", "-d", "to")):
            if kind.capitalize() not in spec["policyTypes"]:
                continue
            for rule in spec.get(kind, ()):
                admitted = _peers(namespace, rule.get(key))
                rules += [
                    (
                        own,
                        pod,
                        other,
                        peer,
                        "-p",
                        port["protocol"].lower(),
                        "--dport",
                        str(port["port"]),
                        "-j",
                        "RETURN",
                    )
                    for peer in admitted
                    for port in rule["ports"]
                ]
            rules.append((own, pod, "-j", "DROP"))
    return rules


def _peers(namespace: Namespace, peers: list[Mapping[str, Any]] | None) -> list[str]:
    """Return the addresses that a rule admits; any without peers."""
    if peers is None:
        return [namespace.cluster.plan.network.default_route]
    found: list[str] = []
    for peer in peers:
        is_any_namespace = "namespaceSelector" in peer  # here only an empty one, for pods of all namespaces
        found += addresses(namespace, peer.get("podSelector", {}), in_all=is_any_namespace)
    return found


def addresses(namespace: Namespace, selector: Mapping[str, Any], *, in_all: bool = False) -> list[str]:
    """Return the addresses of the pods that a selector of labels selects."""
    labels = selector.get("matchLabels", {})
    assert set(selector) <= {"matchLabels"}, f"only labels are supported, not {selector}"
    path = "/api/v1/pods" if in_all else namespace.path("pods")
    return [
        str(pod["status"]["podIP"])
        for pod in namespace.cluster.api.items(path)
        if labels.items() <= pod["metadata"].get("labels", {}).items() and pod.get("status", {}).get("podIP")
    ]
