"""The networks of both families, of which a cluster's pods and Services have one."""

from __future__ import annotations

import ipaddress
import itertools

import pytest
from gantry_cluster.network import HUB, NETWORKS, NODES_MAX, OUTSIDE, Network, pod_network

NETWORKS_BY_NAME = [pytest.param(one, id=str(one.family)) for one in NETWORKS.values()]


@pytest.mark.parametrize("network", NETWORKS_BY_NAME)
def test_all_addresses_of_a_network_are_of_its_family(network: Network) -> None:
    """Machines, pods and Services of a cluster can reach each other only within one family."""
    texts = [network.address(1), network.pods, network.services, network.pods_of(1), network.api_service]
    texts += [network.dns_service, network.default_route]

    assert {f"IPv{ipaddress.ip_interface(text).version}" for text in texts} == {str(network.family)}


@pytest.mark.parametrize("network", NETWORKS_BY_NAME)
def test_no_two_machines_or_ranges_share_an_address(network: Network) -> None:
    """Ranges of machines, Services and each node's pods are disjoint, and machines have different addresses."""
    machines = [network.address(number) for number in (*range(1, NODES_MAX + 1), OUTSIDE, HUB)]
    nodes = [ipaddress.ip_network(network.pods_of(number)) for number in range(1, NODES_MAX + 1)]
    shared = ipaddress.ip_network(f"{machines[0]}/{network.machines_bits}", strict=False)
    pods, services = ipaddress.ip_network(network.pods), ipaddress.ip_network(network.services)

    assert len(set(machines)) == len(machines)
    assert all(ipaddress.ip_address(one) in shared for one in machines)
    assert {ipaddress.ip_address(one) in services for one in (network.api_service, network.dns_service)} == {True}
    assert {end in pods for one in nodes for end in (one[0], one[-1])} == {True}
    assert not any(one.overlaps(other) for one, other in itertools.combinations([*nodes, shared, services], 2))


@pytest.mark.parametrize("network", NETWORKS_BY_NAME)
def test_pods_of_a_node_get_addresses_and_a_route_of_the_family(network: Network) -> None:
    """A pod without a default route of its family reaches only the pods of its own node."""
    addresses = pod_network(network.pods_of(2), network.default_route)["plugins"]

    assert isinstance(addresses, list)
    assert addresses[0]["ipam"]["ranges"] == [[{"subnet": network.pods_of(2)}]]
    assert addresses[0]["ipam"]["routes"] == [{"dst": network.default_route}]
