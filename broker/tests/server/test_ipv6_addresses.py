"""Addresses of both families: parsing and formatting, and sockets that listen on all addresses."""

from __future__ import annotations

import asyncio
import errno
import socket

import pytest

from gantry_broker.setting_keys import broker_settings
from gantry_remoting import (
    Channel,
    CommandService,
    Connection,
    Listener,
    ListenerSettings,
    is_same_address,
    join_address,
    peer_address,
    split_address,
)
from gantry_remoting.addresses import listening_socket
from gantry_remoting.setting_kinds import SettingsError
from gantry_testing.local import on_both_loops, wait_until
from gantry_testing.ports import free_port
from gantry_wire import Command


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("127.0.0.1:9876", ("127.0.0.1", 9876)),
        (" [::1]:9876 ", ("::1", 9876)),
        ("[fd00::7]:1", ("fd00::7", 1)),
        ("::1:10911", ("::1", 10911)),
        ("fd00:0:0:0:0:0:0:7:10911", ("fd00:0:0:0:0:0:0:7", 10911)),
        ("[fe80::1%eth0]:10911", ("fe80::1%eth0", 10911)),
        ("broker-0.example:10911", ("broker-0.example", 10911)),
    ],
)
def test_address_is_parsed_with_and_without_brackets(text: str, found: tuple[str, int]) -> None:
    """RocketMQ's brokers register IPv6 addresses in either form."""
    assert split_address(text) == found
    assert split_address(join_address(*found)) == found


@pytest.mark.parametrize("text", ["::1", "fd00::2", "[::1]", "[::1]:", "[::1:9876", "::1]:9876", "[a]b]:1", "[]b:1"])
def test_address_without_port_is_refused(text: str) -> None:
    """The last group of an IPv6 address is not taken for a port; the remedy shows both forms."""
    with pytest.raises(ValueError, match=r"write host:port.*\[::1\]:9876"):
        split_address(text)


def test_port_zero_is_valid_only_to_listen() -> None:
    """Port 0 can be listened on, but not connected to."""
    assert split_address("[::]:0", port_min=0) == ("::", 0)
    with pytest.raises(ValueError, match="write host:port"):
        split_address("[::]:0")


def test_ipv4_mapped_peer_is_treated_as_ipv4() -> None:
    """Limits, permissions and born hosts do not depend on the socket that a peer connected to."""
    assert peer_address(("::ffff:10.0.0.7", 5, 0, 0)) == ("10.0.0.7", 5)
    assert peer_address(("::1", 5, 0, 0)) == ("::1", 5)
    assert peer_address(("10.0.0.7", 5)) == ("10.0.0.7", 5)
    assert peer_address(("::ffff:not", 5)) == ("::ffff:not", 5)
    assert peer_address(None) == ("", 0)


def test_equal_addresses_with_different_spellings() -> None:
    """Addresses in routes are compared by value, not as text."""
    assert is_same_address("[::1]:10911", "0:0:0:0:0:0:0:1:10911")
    assert is_same_address("junk", "junk") and not is_same_address("junk", "[::1]:10911")
    assert not is_same_address("[::1]:10911", "[::1]:10912")


@pytest.mark.parametrize(
    ("given", "address", "host"),
    [
        ({"brokerIP1": "::1"}, "[::1]:10911", "::1"),
        ({"brokerIP1": "[FD00:0::7]"}, "[fd00::7]:10911", "fd00::7"),
        ({"brokerIP1": "10.0.0.7"}, "10.0.0.7:10911", "10.0.0.7"),
    ],
)
def test_broker_registers_one_form_of_its_address(given: dict[str, str], address: str, host: str) -> None:
    """The registered address has brackets; the one in records has none; the replication address is alike."""
    settings = broker_settings({"listenPort": "10911", "storePathRootDir": "/x", "bindAddress": "[::]", **given})

    assert (settings.address, settings.broker_ip, settings.listen_host) == (address, host, "::")
    assert settings.ha_address == join_address(host, 10912)


def test_host_name_as_address_is_refused() -> None:
    """It goes into message ids, which need an IP address."""
    for text in ("[::1", "::1:10911", "broker.example", "[]"):
        with pytest.raises(SettingsError, match=r"brokerIP1.*write an IP address"):
            broker_settings({"brokerIP1": text, "storePathRootDir": "/x"})


async def peer_address_of(address: str, peers: list[Connection]) -> tuple[str, int]:
    before = len(peers)
    channel = await Channel.connect(address)
    assert (await channel.request(Command(code=99, body=b"x"), 60_000)).body == b"x"
    await wait_until(lambda: len(peers) > before)
    await channel.close()
    return peers[-1].peer


@on_both_loops
async def test_listener_on_all_addresses_serves_both_families() -> None:
    """A listener on `::` answers at 127.0.0.1 and ::1, as Java's does, and sees each peer under its own address."""
    peers: list[Connection] = []
    service = CommandService(lambda command, _: command.reply(body=command.body), connected=peers.append)
    listener = Listener(service, ListenerSettings(host="::", port=free_port()))
    await listener.start()
    port = listener.port
    try:
        assert (await peer_address_of(f"127.0.0.1:{port}", peers))[0] == "127.0.0.1"
        assert (await peer_address_of(f"[::1]:{port}", peers))[0] == "::1"
        assert repr(listener).startswith(f"<Listener [::]:{port} ")
    finally:
        await listener.close()
    with socket.socket(socket.AF_INET6) as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("::", port))


@on_both_loops
async def test_listener_on_one_family_serves_only_that() -> None:
    """A listener on `::1` is not reachable at 127.0.0.1, and vice versa."""
    service = CommandService(lambda command, _: command.reply())
    for host, other in (("::1", "127.0.0.1"), ("127.0.0.1", "::1")):
        listener = Listener(service, ListenerSettings(host=host, port=free_port()))
        await listener.start()
        try:
            with pytest.raises(OSError, match="onnect"):
                await asyncio.open_connection(other, listener.port)
        finally:
            await listener.close()


@on_both_loops
async def test_port_in_use_is_an_error_at_the_start() -> None:
    """A port that is in use is an error at the start, not half a server."""
    service = CommandService(lambda command, _: command.reply())
    first = Listener(service, ListenerSettings(host="::", port=free_port()))
    await first.start()
    try:
        for host in ("::", "127.0.0.1", "::1"):
            with pytest.raises(OSError, match="in use"):
                await Listener(service, ListenerSettings(host=host, port=first.port)).start()
    finally:
        await first.close()


@pytest.fixture
def kernel_without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse sockets of IPv6 as a kernel does that was started with `ipv6.disable=1`."""
    opened = socket.socket

    def open_socket(family: int, kind: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return opened(family, kind)

    monkeypatch.setattr(socket, "socket", open_socket)


@pytest.mark.usefixtures("kernel_without_ipv6")
def test_all_addresses_are_those_of_ipv4_where_the_kernel_has_no_other() -> None:
    """Pods listen on `::` everywhere, also on machines without IPv6."""
    with listening_socket("::", 0, backlog=1) as listening:
        assert (listening.family, listening.getsockname()[0]) == (socket.AF_INET, "0.0.0.0")
        assert not listening.getblocking()


@pytest.mark.usefixtures("kernel_without_ipv6")
def test_one_ipv6_address_is_not_replaced_where_the_kernel_has_no_ipv6() -> None:
    """The twin: a certain address that does not exist is an error."""
    with pytest.raises(OSError, match="not supported"):
        listening_socket("::1", 0, backlog=1)
