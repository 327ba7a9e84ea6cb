"""Who a client is: the address it is seen at, and an id that no other client has."""

import ipaddress
import os
import secrets
import socket
from typing import Final

from gantry_remoting.addresses import split_address

_ELSEWHERE: Final = ("192.0.2.1", 9)
"""An address reserved for documentation: looking up the way to it sends nothing."""


def local_address(towards: str) -> str:
    """Our own address on the way to `towards` (`host:port`), found without sending a byte or asking a resolver."""
    host, port = split_address(towards)
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        (host, port), version = _ELSEWHERE, 4
    try:
        with socket.socket(socket.AF_INET6 if version == 6 else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def client_id(address: str, instance: str | None) -> str:
    """`address@instance`. The default instance is the process and a random part: two containers that share an address
    may well share a process number, too."""
    return f"{address}@{instance or f'{os.getpid()}#{secrets.token_hex(4)}'}"
