"""The network of the cluster, inside the machines of `machine`.

    root namespaces          hub                          node1, node2, ...
    gk-outside 10.77.0.253 ─ outside ─┐
                                   bridge 10.77.0.254
                                      ├─ node1 ────────── eth0 10.77.0.1   pods 10.244.1.0/24
                                      └─ node2 ────────── eth0 10.77.0.2   pods 10.244.2.0/24

The root namespaces have an address in the network of the nodes and reject packets to pods and Services, which otherwise
would go to the machine's own gateway: a program there is a client outside of the cluster. A cut cable is a port of the
bridge that is down; other network faults are rules in the node's own tables (`faults`).
"""

from __future__ import annotations

from pathlib import Path

from gantry_cluster.commands import run, wait_until
from gantry_cluster.journal import Journal
from gantry_cluster.machine import Machine

PREFIX = "10.77.0"
HUB_ADDRESS = f"{PREFIX}.254"
OUTSIDE_ADDRESS = f"{PREFIX}.253"
OUTSIDE_LINK = "gk-outside"
PODS = "10.244.0.0/16"
SERVICES = "10.96.0.0/16"
"""The addresses of all pods, and those of all Services."""

API_SERVICE = "10.96.0.1"
DNS_SERVICE = "10.96.0.10"
"""The addresses of the Services of the API server and of DNS."""

NODES_MAX = 9
UNPLUG_SECONDS_MAX = 30.0
"""The limit for the kernel to remove the link of a crashed node."""


def node_name(number: int) -> str:
    """Return the name of a node."""
    return f"node{number}"


def node_address(number: int) -> str:
    """Return the address of a node."""
    return f"{PREFIX}.{number}"


def pods_of(number: int) -> str:
    """Return the addresses of a node's pods."""
    return f"10.244.{number}.0/24"


def pod_network(pods: str) -> dict[str, object]:
    """Return the configuration of the network of a node's pods for CNI: a bridge, and addresses from this range."""
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": pods}]], "routes": [{"dst": "0.0.0.0/0"}]},
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge, ports]}


def wire_hub(hub: Machine, journal: Journal) -> None:
    """Create the bridge, and the one link out of it."""
    hub.run("ip", "link", "add", "bridge", "type", "bridge")
    hub.run("ip", "address", "add", f"{HUB_ADDRESS}/24", "dev", "bridge")
    hub.run("ip", "link", "set", "bridge", "up")
    journal.link(OUTSIDE_LINK)
    run("ip", "link", "add", OUTSIDE_LINK, "type", "veth", "peer", "name", "outside", "netns", str(hub.init.pid))
    run("ip", "address", "add", f"{OUTSIDE_ADDRESS}/24", "dev", OUTSIDE_LINK)
    run("ip", "link", "set", OUTSIDE_LINK, "up")
    hub.run("ip", "link", "set", "outside", "master", "bridge", "up")
    for inside in (PODS, SERVICES):
        journal.unreachable(inside)


def ports(hub: Machine) -> set[str]:
    """Return the links that are connected to the bridge now."""
    listed = hub.run("ip", "-brief", "link", "show", "master", "bridge")
    return {line.partition("@")[0].split()[0] for line in listed.splitlines()}


def wire_node(hub: Machine, node: Machine, number: int, nodes: int) -> None:
    """Create a link from the node to the bridge, and the routes to the pods of all nodes."""
    port = node_name(number)
    peer = ("peer", "name", "eth0", "netns", str(node.init.pid))
    # The link of a node that has just crashed ends with its namespace, which the kernel removes asynchronously.
    wait_until(f"a free port for {port}", lambda: port not in ports(hub), UNPLUG_SECONDS_MAX)
    # The link is made from the root namespaces, because the process ids are those of the root namespace.
    run("ip", "link", "add", port, "netns", str(hub.init.pid), "type", "veth", *peer)
    hub.run("ip", "link", "set", port, "master", "bridge", "up")
    node.run("ip", "address", "add", f"{node_address(number)}/24", "dev", "eth0")
    node.run("ip", "link", "set", "eth0", "up")
    node.run("ip", "route", "add", "default", "via", HUB_ADDRESS)
    for other in range(1, nodes + 1):
        if other != number:
            node.run("ip", "route", "add", pods_of(other), "via", node_address(other))
    # The API server reaches webhooks and aggregated servers in pods.
    hub.run("ip", "route", "replace", pods_of(number), "via", node_address(number))
    node.set("net/ipv4/ip_forward", "1")
    node.set("net/bridge/bridge-nf-call-iptables", "1")
    # Pods keep their address towards other pods; only what leaves the cluster takes the node's.
    masquerade = ("-s", PODS, "!", "-d", PODS, "-j", "MASQUERADE")
    node.run("iptables", "--wait", "-t", "nat", "-A", "POSTROUTING", *masquerade)


def mount_name_files(machine: Machine, folder: Path, names: dict[str, str]) -> None:
    """Give a machine its own `hosts` and `resolv.conf`, so that it does not use the real machine's name servers."""
    hosts = folder / "hosts"
    lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in names.items())]
    hosts.write_text("\n".join(lines) + "\n")
    machine.mount("--bind", hosts, "/etc/hosts")
    resolver = folder / "resolv.conf"
    resolver.write_text(f"nameserver {HUB_ADDRESS}\n")
    # On some machines `/etc/resolv.conf` is a link into /run, so the mount goes to its target.
    target = Path("/etc/resolv.conf").resolve()
    if target.exists():
        machine.mount("--bind", resolver, target)
