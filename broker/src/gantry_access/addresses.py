"""Peers that are believed by their address: RocketMQ's patterns, and networks in CIDR form.

    10.0.3.7    10.0.*.*    10.0.3-5.*    10.0.3.{7,8}    10.0.3.7,10.0.3.8    10.0.0.0/16    fd00::7    fd00::/8

An address is no proof: whoever can take it, or comes through a proxy that has it, is believed. The strict mode
therefore takes none of these, and a pattern that matches everybody is refused everywhere: it says "no access control"
in a way that nobody sees.
"""

import ipaddress
import re
from dataclasses import dataclass
from typing import Final, final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Octets = tuple[range, range, range, range]

_BRACES: Final = re.compile(r"(?P<head>\d+\.\d+\.\d+\.)\{(?P<choices>[\d, ]+)\}")
_WHOLE: Final = range(256)
ALTERNATIVES_MAX: Final = 1024


@final
@dataclass(frozen=True, slots=True)
class AddressPatterns:
    """Some peers. Without patterns it is nobody."""

    octets: tuple[Octets, ...] = ()
    networks: tuple[Network, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.octets or self.networks)

    def __add__(self, other: "AddressPatterns") -> "AddressPatterns":
        return AddressPatterns(self.octets + other.octets, self.networks + other.networks)

    def matches(self, text: str) -> bool:
        """Whether the peer at this address is one of them."""
        if not self:
            return False
        address = _address(text)
        if address is None:
            return False
        if any(address.version == network.version and address in network for network in self.networks):
            return True
        if address.version != 4:
            return False
        parts = address.packed
        return any(all(part in one for part, one in zip(parts, octets, strict=True)) for octets in self.octets)


def read_patterns(text: str) -> AddressPatterns:
    """The peers that a pattern names. Raises ValueError with a remedy."""
    found = AddressPatterns()
    for part in _alternatives(text):
        found += _one(part)
    if any(all(one == _WHOLE for one in octets) for octets in found.octets) or any(
        network.prefixlen == 0 for network in found.networks
    ):
        raise ValueError("matches every peer, and so there would be no access control; name the peers")
    return found


def _alternatives(text: str) -> list[str]:
    """`a.b.c.{d,e}` and `a,b` as single patterns."""
    braces = _BRACES.fullmatch(text.strip())
    if braces is not None:
        parts = [braces["head"] + choice.strip() for choice in braces["choices"].split(",")]
    else:
        parts = [part.strip() for part in text.split(",")]
    if len(parts) > ALTERNATIVES_MAX:
        raise ValueError(f"names more than {ALTERNATIVES_MAX} addresses; write networks")
    return parts


def _one(text: str) -> AddressPatterns:
    if text == "*":
        raise ValueError("matches every peer, and so there would be no access control; name the peers")
    try:
        if "*" in text or "-" in text:
            return AddressPatterns(octets=(_octets(text),))
        return AddressPatterns(networks=(ipaddress.ip_network(text, strict=False),))
    except ValueError as error:
        raise ValueError("is no address; write 10.0.3.7, 10.0.3.*, 10.0.3-5.*, 10.0.0.0/16 or fd00::/8") from error


def _octets(text: str) -> Octets:
    first, second, third, fourth = (_octet(part) for part in text.split("."))
    return first, second, third, fourth


def _octet(text: str) -> range:
    if text == "*":
        return _WHOLE
    low, separator, high = text.partition("-")
    start, end = int(low), int(high if separator else low) + 1
    if not 0 <= start < end <= 256:
        raise ValueError("an octet is 0 to 255")
    return range(start, end)


def _address(text: str) -> Address | None:
    """A peer's address, an IPv4 one in IPv6 clothes taken for what it is."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
