"""The network of the replication tests: a cut must be effective, in one direction, until it is removed."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from replication.network import CLIENTS, Network

PORT = 5000
QUIET_S = 0.3


@contextmanager
def connection(network: Network) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Open a connection from the clients to member 1, and return both ends."""
    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    network._enter(network._namespaces[1])
    with socket.create_server(("", PORT)) as listener:
        network._enter(here)
        with socket.create_connection((network.host(1), PORT), 5) as client, listener.accept()[0] as server:
            server.settimeout(60)
            yield client, server
    os.close(here)


@pytest.mark.needs_root
def test_cut_is_silent_and_one_way() -> None:
    """Nothing arrives in that direction, everything in the other; dropped packets are sent again after the repair."""
    with Network(2) as network, connection(network) as (client, server):
        client.sendall(b"a")
        assert server.recv(1) == b"a"

        network.drop_packets(CLIENTS, 1)
        client.sendall(b"b")
        server.sendall(b"c")
        assert client.recv(1) == b"c"
        server.settimeout(QUIET_S)
        with pytest.raises(TimeoutError):
            server.recv(1)

        network.heal()
        server.settimeout(60)
        assert server.recv(1) == b"b"


@pytest.mark.needs_root
def test_thread_returns_to_its_namespace() -> None:
    """It returns also after an exception."""
    home = os.readlink("/proc/thread-self/ns/net")
    with pytest.raises(RuntimeError, match="inside"), Network(1):
        assert os.readlink("/proc/thread-self/ns/net") != home
        raise RuntimeError("inside")

    assert os.readlink("/proc/thread-self/ns/net") == home


def test_without_root_members_share_one_host() -> None:
    """Without root, cuts are reported as impossible."""
    with Network(3, is_isolated=False) as network:
        assert {network.host(place) for place in range(4)} == {"127.0.0.1"}
        assert network.command(1) == ()
        with pytest.raises(AssertionError):
            network.drop_packets(1, 2)
