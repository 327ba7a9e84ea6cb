"""The agent of a node of kind whose image is built here: the network of its pods, and its volumes.

It stands for the two programs that kind's own images bring, and that come from a registry. It uses the API with the
identity of the node's kubelet, whose permissions `node/kind/manifests` extends, and only Python's standard library.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
import time
from pathlib import Path
from typing import Final

from gantry_cluster.api import Api, Object
from gantry_cluster.commands import run
from gantry_cluster.errors import ApiRefused, ClusterError, CommandFailed
from gantry_cluster.network import IPV4, pod_network
from gantry_cluster.provisioner import provision

KUBECONFIG: Final = Path("/etc/kubernetes/kubelet.conf")
AUTHORITY: Final = Path("/etc/kubernetes/pki/ca.crt")
IDENTITY: Final = Path("/var/lib/kubelet/pki/kubelet-client-current.pem")
"""The kubelet's certificate with its key, which it renews."""

NETWORK: Final = Path("/etc/cni/net.d/10-pods.conflist")
DISK: Final = Path("/var/lib/gantry-disk")
"""The folder with one folder per volume."""

POLL_SECONDS: Final = 1.0
SERVER: Final = re.compile(r"^\s*server: https://(?P<host>[^\s:]+):(?P<port>\d+)\s*$", re.MULTILINE)
MASQUERADE: Final = (
    *("POSTROUTING", "--source", IPV4.pods, "!", "--destination", IPV4.pods),
    *("--match", "addrtype", "!", "--dst-type", "LOCAL", "--jump", "MASQUERADE"),
)
"""Pods keep their address towards other pods and this node; only what leaves takes the node's."""


def server_of(kubeconfig: str) -> tuple[str, int]:
    """Return host and port of the API server in a kubeconfig. Raises ``ClusterError``."""
    found = SERVER.search(kubeconfig)
    if found is None:
        raise ClusterError(f"{KUBECONFIG} names no API server")
    return found["host"], int(found["port"])


def routes(nodes: list[Object], own: str) -> dict[str, str]:
    """Return the addresses of the other nodes by the range of their pods."""
    found = {}
    for node in nodes:
        pods = node["spec"].get("podCIDR")
        addresses = [
            str(one["address"])
            for one in node.get("status", {}).get("addresses", ())
            if one["type"] == "InternalIP" and ":" not in one["address"]
        ]
        if node["metadata"]["name"] != own and pods and addresses:
            found[str(pods)] = addresses[0]
    return found


def pods_range(nodes: list[Object], own: str) -> str | None:
    """Return the range of the pods of this node; None before Kubernetes has assigned one."""
    return next((node["spec"].get("podCIDR") for node in nodes if node["metadata"]["name"] == own), None)


def connect() -> Api:
    """Return a client with the kubelet's present identity."""
    host, port = server_of(KUBECONFIG.read_text())
    context = ssl.create_default_context(cafile=str(AUTHORITY))
    context.load_cert_chain(IDENTITY)
    return Api(context, host, port)


def update_network(nodes: list[Object], own: str) -> None:
    """Configure the network of this node's pods, and a route to the pods of every other node."""
    pods = pods_range(nodes, own)
    if pods is not None and not NETWORK.exists():
        draft = NETWORK.with_suffix(".draft")
        draft.write_text(json.dumps(pod_network(pods)))
        draft.replace(NETWORK)
    for target, address in routes(nodes, own).items():
        run("ip", "route", "replace", target, "via", address)


def main() -> None:
    """Update network and volumes in an endless loop, also while the API server is down or does not exist yet."""
    own = socket.gethostname()
    nat = ("iptables", "--wait", "-t", "nat")
    try:
        run(*nat, "--check", *MASQUERADE)
    except CommandFailed:  # the rule does not exist, unless this is a restart of the agent
        run(*nat, "--append", *MASQUERADE)
    while True:
        try:
            api = connect()
            update_network(api.items("/api/v1/nodes"), own)
            provision(api, lambda node: DISK if node == own else None)
        except (OSError, http.client.HTTPException, ApiRefused, ClusterError) as error:
            print(f"failed to update network or volumes, will retry: {error}", flush=True)
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    main()
