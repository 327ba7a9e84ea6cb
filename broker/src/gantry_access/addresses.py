"""Peers that are trusted by their address: RocketMQ's patterns, and networks in CIDR form.

    10.0.3.7    10.0.*.*    10.0.3-5.*    10.0.3.{7,8}    10.0.3.7,10.0.3.8    10.0.0.0/16    fd00::7    fd00::/8

An address is no proof: any process that can use it, or connects through a proxy that has it, is trusted. The strict
mode therefore accepts none of these, and a pattern that matches every peer is refused in both modes: it would silently
disable access control.
"""

import ipaddress
import re
from dataclasses import dataclass
from typing import Final, final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Octets = tuple[range, range, range, range]
"""The allowed values of each of the four numbers of an IPv4 address."""

_BRACES: Final = re.compile(r"(?P<head>\d+\.\d+\.\d+\.)\{(?P<choices>[\d, ]+)\}")
_WHOLE: Final = range(256)
"""All values of a number, for an asterisk."""
ALTERNATIVES_MAX: Final = 1024
"""Limit of the single patterns that one text stands for."""


@final
@dataclass(frozen=True, slots=True)
class AddressPatterns:
    """A set of peer addresses; without patterns it matches none."""

    octets: tuple[Octets, ...] = ()
    """RocketMQ's patterns, as ranges of numbers."""

    networks: tuple[Network, ...] = ()
    """Networks in CIDR form, and IPv6 addresses."""

    def __bool__(self) -> bool:
        return bool(self.octets or self.networks)

    def __add__(self, other: "AddressPatterns") -> "AddressPatterns":
        return AddressPatterns(self.octets + other.octets, self.networks + other.networks)

    def matches(self, text: str) -> bool:
        """Return whether a pattern matches the address of a peer."""
        if not self:
            return False
        address = parse_address(text)
        if address is None:
            return False
        if any(address.version == network.version and address in network for network in self.networks):
            return True
        if address.version != 4:
            return False
        parts = address.packed
        return any(all(part in one for part, one in zip(parts, octets, strict=True)) for octets in self.octets)


def read_patterns(text: str) -> AddressPatterns:
    """Parse a pattern. Raises ValueError with a remedy."""
    found = AddressPatterns()
    for part in _alternatives(text):
        found += _parse_one(part)
    if any(all(one == _WHOLE for one in octets) for octets in found.octets) or any(
        network.prefixlen == 0 for network in found.networks
    ):
        raise ValueError("matches every peer, which would disable access control; list the peers")
    return found


def _alternatives(text: str) -> list[str]:
    """Split `a.b.c.{d,e}` and `a,b` into single patterns."""
    braces = _BRACES.fullmatch(text.strip())
    if braces is not None:
        parts = [braces["head"] + choice.strip() for choice in braces["choices"].split(",")]
    else:
        parts = [part.strip() for part in text.split(",")]
    if len(parts) > ALTERNATIVES_MAX:
        raise ValueError(f"lists more than {ALTERNATIVES_MAX} addresses; use networks instead")
    return parts


def _parse_one(text: str) -> AddressPatterns:
    if text == "*":
        raise ValueError("matches every peer, which would disable access control; list the peers")
    try:
        if "*" in text or "-" in text:
            return AddressPatterns(octets=(_octets(text),))
        return AddressPatterns(networks=(ipaddress.ip_network(text, strict=False),))
    except ValueError as error:
        raise ValueError(
            "is not an address; expected 10.0.3.7, 10.0.3.*, 10.0.3-5.*, 10.0.0.0/16 or fd00::/8"
        ) from error


def _octets(text: str) -> Octets:
    first, second, third, fourth = (_octet(part) for part in text.split("."))
    return first, second, third, fourth


def _octet(text: str) -> range:
    if text == "*":
        return _WHOLE
    low, separator, high = text.partition("-")
    start, end = int(low), int(high if separator else low) + 1
    if not 0 <= start < end <= 256:
        raise ValueError("an octet must be 0 to 255")
    return range(start, end)


def parse_address(text: str) -> Address | None:
    """Parse the address of a peer; an IPv4-mapped IPv6 address becomes IPv4."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
