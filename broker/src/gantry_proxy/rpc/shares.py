"""What the clients of a port may take together, and how they share it. It applies before a client has authenticated.

A port has three amounts: the bytes that it holds for clients, the open calls, and the connections. One rule shares
each of them, without a setting and without a guess who is honest. An amount may grow for an address while what that
has is at most three times what is then free (`RpcLimits.address_factor`), and the bytes of a connection while they are
at most what is free:

    0 ...... used by this address ...... used by all others ...... | free | limit

So one connection can hold half of the bytes, and one address three quarters of every amount, which a single client of
a quiet port hardly notices. Each further address can take three quarters of the rest. Many addresses together could
take almost all, so a port that is almost full gives clients less time to complete what they have begun. A load
balancer that replaces the addresses of clients counts as one address.
"""

import ipaddress
import logging
from contextlib import suppress
from typing import Final, final

from gantry_remoting.close_log import LimitedLog

log = LimitedLog(logging.getLogger(__name__))

TIGHT_PARTS: Final = 8
"""A port is almost full if less than one in so many parts of an amount is free."""
IPV6_PREFIX_BITS: Final = 64
"""An IPv6 client has a network of this size at least, so that all addresses of one count as one."""


@final
class AddressUse:
    """What the clients at one address have."""

    __slots__ = ("calls", "connections", "held_bytes")

    def __init__(self) -> None:
        self.calls = 0
        self.connections = 0
        self.held_bytes = 0

    def __repr__(self) -> str:
        return f"<AddressUse connections={self.connections} calls={self.calls} held={self.held_bytes}>"


@final
class PortUse:
    """What all clients of a port have. Owned by the event loop."""

    def __init__(self, *, bytes_max: int, calls_max: int, connections_max: int, address_factor: int) -> None:
        """An address may have ``address_factor`` times what is free."""
        self._address_factor: Final = address_factor
        self._bytes_max: Final = bytes_max
        self._calls_max: Final = calls_max
        self._connections_max: Final = connections_max
        self.addresses: Final[dict[str, AddressUse]] = {}
        """By the address, or by its network."""
        self.held_bytes = 0
        """Bytes of incomplete requests, large headers, unread messages, and replies that clients have not read."""
        self.calls = 0
        """The open calls. The port counts them here and for their addresses."""
        self.connections = 0
        self.refused = 0
        """How many calls, connections and replies were refused or ended, since their clients had too much."""

    def __repr__(self) -> str:
        return f"<PortUse connections={self.connections} calls={self.calls} held={self.held_bytes}>"

    @property
    def is_tight(self) -> bool:
        """Whether the port is almost full."""
        bytes_max, calls_max = self._bytes_max, self._calls_max
        return (
            bytes_max - self.held_bytes < bytes_max // TIGHT_PARTS or calls_max - self.calls < calls_max // TIGHT_PARTS
        )

    def connect(self, peer: str) -> "ConnectionShare | None":
        """Return the share of a new connection of an address; None if there is no room for it."""
        network = _network(peer)
        address = self.addresses.get(network) or AddressUse()
        free = self._connections_max - self.connections
        if free <= 0 or address.connections >= self._address_factor * free:
            self.refuse(peer, "connections")
            return None
        self.addresses[network] = address
        self.connections += 1
        address.connections += 1
        return ConnectionShare(self, address, network, peer)

    def disconnect(self, share: "ConnectionShare") -> None:
        """Forget a connection, whose calls have ended."""
        share.hold(-share.held_bytes)
        self.connections -= 1
        share.address.connections -= 1
        if not share.address.connections:
            del self.addresses[share.network]

    def has_room_for_call(self, share: "ConnectionShare") -> bool:
        """Return whether a connection may open another call."""
        free = self._calls_max - self.calls
        return free > 0 and share.address.calls < self._address_factor * free

    def can_hold(self, share: "ConnectionShare") -> bool:
        """Return whether a connection may have as many bytes as it has now."""
        free = self._bytes_max - self.held_bytes
        return share.held_bytes <= free and share.address.held_bytes <= self._address_factor * free

    def refuse(self, peer: str, amount: str) -> None:
        """Count that a client was refused, and log it with a limited rate."""
        self.refused += 1
        log.write(
            logging.WARNING, "refusing clients of the gRPC port", {"peer": peer, "amount": amount, "use": repr(self)},
            kind=amount,
        )  # fmt: skip


@final
class ConnectionShare:
    """What one connection has of its port."""

    __slots__ = ("_port", "address", "held_bytes", "network", "peer")

    def __init__(self, port: PortUse, address: AddressUse, network: str, peer: str) -> None:
        self._port: Final = port
        self.address: Final = address
        self.network: Final = network
        self.peer: Final = peer
        """The IP address of the client."""
        self.held_bytes = 0

    def __repr__(self) -> str:
        return f"<ConnectionShare {self.peer} held={self.held_bytes}>"

    def hold(self, size: int) -> bool:
        """Count bytes that are held for the connection, negative ones if they are no longer.

        Return False if they are too many. They count also then, until the caller has dropped them.
        """
        port, address = self._port, self.address
        port.held_bytes += size
        address.held_bytes += size
        self.held_bytes += size
        if size <= 0 or port.can_hold(self):
            return True
        port.refuse(self.peer, "bytes")
        return False


def _network(peer: str) -> str:
    """Return the network for which a client counts: its address, or the network of an IPv6 address."""
    if ":" in peer:
        with suppress(ValueError):
            return str(ipaddress.IPv6Network((peer.partition("%")[0], IPV6_PREFIX_BITS), strict=False))
    return peer
