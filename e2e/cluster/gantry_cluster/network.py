"""The network of the cluster, inside the machines of `machine`.

    root namespaces          hub                          node1, node2, ...
    gk-outside 10.77.0.253 ─ outside ─┐
                                   bridge 10.77.0.254
                                      ├─ node1 ────────── eth0 10.77.0.1   pods 10.244.1.0/24
                                      └─ node2 ────────── eth0 10.77.0.2   pods 10.244.2.0/24

Machines have addresses of both families, `fd00:77::1` beside 10.77.0.1 and so on. Pods and Services have those of one
family, which is chosen when the cluster is made: `NETWORKS`.

The root namespaces have an address in the network of the nodes and reject packets to pods and Services, which otherwise
would go to the machine's own gateway: a program there is a client outside of the cluster. A cut cable is a port of the
bridge that is down; other network faults are rules in the node's own tables (`faults`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, unique
from pathlib import Path
from typing import Final, final

from gantry_cluster.commands import run, wait_until
from gantry_cluster.journal import Journal
from gantry_cluster.machine import Machine

HUB = 254
OUTSIDE = 253
"""The numbers of the hub and of the root namespaces in the network of the nodes; a node has its own number."""

OUTSIDE_LINK = "gk-outside"
NODES_MAX = 9
UNPLUG_SECONDS_MAX = 30.0
"""The limit for the kernel to remove the link of a crashed node."""


@unique
class Family(StrEnum):
    """The families of addresses, by the names that Kubernetes has for them."""

    IPV4 = "IPv4"
    IPV6 = "IPv6"


@final
@dataclass(frozen=True)
class Network:
    """The addresses of one family: of machines, pods and Services."""

    family: Family

    machines: str
    """The address of a machine, with its number left out."""

    machines_bits: int
    """The length of the prefix that all machines share."""

    pods: str
    services: str
    """The addresses of all pods, and those of all Services."""

    node_pods: str
    """The addresses of a node's pods, with its number left out."""

    api_service: str
    dns_service: str
    """The addresses of the Services of the API server and of DNS."""

    default_route: str
    """The range of all addresses."""

    iptables: str
    """The program that edits the kernel's rules for packets."""

    forwarding: str
    bridge_filter: str
    """The kernel's settings that forward packets, and that filter those of bridges."""

    def address(self, number: int) -> str:
        """Return the address of a machine: of a node, `HUB` or `OUTSIDE`."""
        return self.machines.format(number)

    @property
    def hub(self) -> str:
        """The address of the hub."""
        return self.address(HUB)

    def pods_of(self, number: int) -> str:
        """Return the addresses of a node's pods."""
        return self.node_pods.format(number)


IPV4: Final = Network(
    Family.IPV4,
    machines="10.77.0.{}",
    machines_bits=24,
    pods="10.244.0.0/16",
    services="10.96.0.0/16",
    node_pods="10.244.{}.0/24",
    api_service="10.96.0.1",
    dns_service="10.96.0.10",
    default_route="0.0.0.0/0",
    iptables="iptables",
    forwarding="net/ipv4/ip_forward",
    bridge_filter="net/bridge/bridge-nf-call-iptables",
)
IPV6: Final = Network(
    Family.IPV6,
    machines="fd00:77::{}",
    machines_bits=64,
    pods="fd00:10:244::/48",
    services="fd00:10:96::/112",
    node_pods="fd00:10:244:{}::/64",
    api_service="fd00:10:96::1",
    dns_service="fd00:10:96::a",
    default_route="::/0",
    iptables="ip6tables",
    forwarding="net/ipv6/conf/all/forwarding",
    bridge_filter="net/bridge/bridge-nf-call-ip6tables",
)
NETWORKS: Final = {one.family: one for one in (IPV4, IPV6)}
"""The networks by their family."""

HUB_ADDRESS: Final = IPV4.hub
"""The address under which machines reach the API server, for pods of both families."""


def node_name(number: int) -> str:
    """Return the name of a node."""
    return f"node{number}"


def pod_network(pods: str, default_route: str = IPV4.default_route) -> dict[str, object]:
    """Return the configuration of the network of a node's pods for CNI: a bridge, and addresses from this range."""
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": pods}]], "routes": [{"dst": default_route}]},
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge, ports]}


def wire_hub(hub: Machine, journal: Journal) -> None:
    """Create the bridge, and the one link out of it."""
    hub.run("ip", "link", "add", "bridge", "type", "bridge")
    for network in NETWORKS.values():
        hub.run("ip", "address", "add", *_own(network, HUB), "dev", "bridge")
    hub.run("ip", "link", "set", "bridge", "up")
    journal.link(OUTSIDE_LINK)
    run("ip", "link", "add", OUTSIDE_LINK, "type", "veth", "peer", "name", "outside", "netns", str(hub.init.pid))
    for network in NETWORKS.values():
        run("ip", "address", "add", *_own(network, OUTSIDE), "dev", OUTSIDE_LINK)
    run("ip", "link", "set", OUTSIDE_LINK, "up")
    hub.run("ip", "link", "set", "outside", "master", "bridge", "up")
    for network in NETWORKS.values():
        journal.unreachable(network.pods)
        journal.unreachable(network.services)


def _own(network: Network, number: int) -> tuple[str, ...]:
    """Return the words that give a machine its address, usable at once: no other machine can have it."""
    is_checked = network.family is Family.IPV6
    return (f"{network.address(number)}/{network.machines_bits}", *(("nodad",) if is_checked else ()))


def ports(hub: Machine) -> set[str]:
    """Return the links that are connected to the bridge now."""
    listed = hub.run("ip", "-brief", "link", "show", "master", "bridge")
    return {line.partition("@")[0].split()[0] for line in listed.splitlines()}


def wire_node(hub: Machine, node: Machine, number: int, nodes: int, family: Family) -> None:
    """Create a link from the node to the bridge, and the routes to the pods of all nodes."""
    port = node_name(number)
    peer = ("peer", "name", "eth0", "netns", str(node.init.pid))
    # The link of a node that has just crashed ends with its namespace, which the kernel removes asynchronously.
    wait_until(f"a free port for {port}", lambda: port not in ports(hub), UNPLUG_SECONDS_MAX)
    # The link is made from the root namespaces, because the process ids are those of the root namespace.
    run("ip", "link", "add", port, "netns", str(hub.init.pid), "type", "veth", *peer)
    hub.run("ip", "link", "set", port, "master", "bridge", "up")
    for network in NETWORKS.values():
        node.run("ip", "address", "add", *_own(network, number), "dev", "eth0")
    node.run("ip", "link", "set", "eth0", "up")
    for network in NETWORKS.values():
        node.run("ip", "route", "add", network.default_route, "via", network.hub)
    network = NETWORKS[family]
    for other in range(1, nodes + 1):
        if other != number:
            node.run("ip", "route", "add", network.pods_of(other), "via", network.address(other))
    # The API server reaches webhooks and aggregated servers in pods.
    hub.run("ip", "route", "replace", network.pods_of(number), "via", network.address(number))
    node.set(network.forwarding, "1")
    node.set(network.bridge_filter, "1")
    # Pods keep their address towards other pods; only what leaves the cluster takes the node's.
    masquerade = ("-s", network.pods, "!", "-d", network.pods, "-j", "MASQUERADE")
    node.run(network.iptables, "--wait", "-t", "nat", "-A", "POSTROUTING", *masquerade)


def mount_name_files(machine: Machine, folder: Path, names: dict[str, str], resolver_address: str) -> None:
    """Give a machine its own `hosts` and `resolv.conf`, so that it does not use the real machine's name servers."""
    hosts = folder / "hosts"
    lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in names.items())]
    hosts.write_text("\n".join(lines) + "\n")
    machine.mount("--bind", hosts, "/etc/hosts")
    resolver = folder / "resolv.conf"
    resolver.write_text(f"nameserver {resolver_address}\n")
    # On some machines `/etc/resolv.conf` is a link into /run, so the mount goes to its target.
    target = Path("/etc/resolv.conf").resolve()
    if target.exists():
        machine.mount("--bind", resolver, target)
