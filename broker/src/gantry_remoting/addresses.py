"""Addresses in text form, for IPv4 and IPv6, and sockets that listen on them.

An IPv6 host is written in brackets when a port follows: `[fd00::7]:10911`. RocketMQ's brokers may also write it without
brackets (`fd00::7:10911`), and both forms are read. Gantry writes brackets only, because some clients require them.

`::` means all addresses of both families, as in Java and Go; asyncio alone would take it for IPv6 only. Where the
kernel has no IPv6, it means all addresses of IPv4. The kernel reports a peer that connects to such a socket over IPv4
as `::ffff:10.0.0.7`, which is converted to `10.0.0.7`: limits per address, permissions and the hosts in records must
not depend on the socket that a peer chose.
"""

import asyncio
import contextlib
import errno
import ipaddress
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Final, final

ANYWHERE: Final = "::"
"""The host that stands for all addresses of both families."""
ANYWHERE_IPV4: Final = "0.0.0.0"
"""The host that stands for all addresses of IPv4."""
_MAPPED: Final = "::ffff:"
"""How the kernel writes an IPv4 peer of an IPv6 socket."""


@final
class PortInUse(OSError):
    """Another process listens on the port. `port` is its number, for a server that listens on several."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(errno.EADDRINUSE, f"address already in use: {join_address(host, port)}")
        self.port: Final = port


def split_address(address: str, *, port_min: int = 1) -> tuple[str, int]:
    """Return the (host, port) of `host:port` or `[v6]:port`. Raises ValueError with a remedy."""
    host, separator, port = address.strip().rpartition(":")
    is_port = separator and port.isascii() and port.isdigit() and port_min <= int(port) < 65536
    bare = bare_host(host)
    if not is_port or not _is_host(bare):
        raise ValueError(
            f"{address!r} is not an address: write host:port, for example 127.0.0.1:9876, or [::1]:9876 with IPv6"
        )
    return bare, int(port)


def join_address(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def bare_host(text: str) -> str:
    """Return a host without the optional brackets around IPv6."""
    return text[1:-1] if text.startswith("[") and text.endswith("]") else text


def peer_address(name: Sequence[object] | None) -> tuple[str, int]:
    """Return (host, port) of a socket's address as the kernel gives it; an IPv4-mapped IPv6 host becomes IPv4."""
    if not name:
        return "", 0
    host, port = str(name[0]), int(str(name[1]))
    if host.startswith(_MAPPED):
        with contextlib.suppress(ValueError):
            mapped = ipaddress.IPv6Address(host).ipv4_mapped
            host = host if mapped is None else str(mapped)
    return host, port


def is_same_address(one: str, other: str) -> bool:
    """Return whether two texts are the same address in different spellings."""
    try:
        return _normalized(one) == _normalized(other)
    except ValueError:
        return one == other


async def listen(
    factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, *, backlog: int = 100
) -> asyncio.Server:
    """Return asyncio's server on `host`, on both families if it is `::`. Raises PortInUse, or another OSError."""
    loop = asyncio.get_running_loop()
    with _naming_taken_port(host, port):
        if host == ANYWHERE:
            listening = listening_socket(host, port, backlog=backlog)
            return await loop.create_server(factory, sock=listening, backlog=backlog)
        return await loop.create_server(factory, host, port, backlog=backlog)


def listening_port(server: asyncio.Server) -> int:
    """Return the port on which a server of `listen` listens."""
    return int(server.sockets[0].getsockname()[1])


async def open_listening_socket(host: str, port: int, *, backlog: int) -> socket.socket:
    """Return a socket that listens on the first address of `host`, for an owner that accepts by itself.

    Raises the errors of `listen`.
    """
    with _naming_taken_port(host, port):
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        return _open_socket(found[0][0], found[0][4], backlog)


def listening_socket(host: str, port: int, *, backlog: int) -> socket.socket:
    """Return a socket that listens on the first address of `host`. It blocks while a name is looked up.

    Raises OSError; for a name that does not exist its subclass ``socket.gaierror``.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return _open_socket(found[0][0], found[0][4], backlog)


@contextlib.contextmanager
def _naming_taken_port(host: str, port: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(host, port) from error
        raise


async def stop_listening(server: asyncio.Server) -> None:
    """Close the listening sockets of ``server``; on asyncio's own loop after one turn in which it accepts nothing.

    Python 3.11 loses a connection that it accepts in the turn in which the server closes: it stays open until the
    garbage collector finds it (python/cpython#109564).
    """
    loop = asyncio.get_running_loop()
    if isinstance(loop, asyncio.SelectorEventLoop):
        for listening in server.sockets:
            loop.remove_reader(listening.fileno())
        await asyncio.sleep(0)
    server.close()


def _open_socket(family: int, address: tuple[object, ...], backlog: int) -> socket.socket:
    """Return a listening socket. An IPv6 socket on all addresses accepts both families."""
    try:
        listening = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        if error.errno != errno.EAFNOSUPPORT or address[0] != ANYWHERE:
            raise
        family, address = socket.AF_INET, (ANYWHERE_IPV4, address[1])
        listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address[0] != ANYWHERE))
        listening.setblocking(False)
        listening.bind(address)
        listening.listen(backlog)
    except OSError:
        listening.close()
        raise
    return listening


def _normalized(address: str) -> tuple[str, int]:
    host, port = split_address(address)
    return (str(ipaddress.ip_address(host)) if ":" in host else host), port


def _is_host(text: str) -> bool:
    if ":" not in text:
        return "[" not in text and "]" not in text
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True
