"""Ports for servers of a test, out of the range from which the kernel takes those of connections.

A port that is free now and lies in that range may belong to somebody's connection when its server comes to
listen on it.
"""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from typing import Final

HOST: Final = "127.0.0.1"
FIRST: Final = 20_000
END: Final = 32_000
"""Linux begins at 32768."""
TRIES_MAX: Final = 1000
_RANDOM: Final = random.SystemRandom()
"""Tests that run at the same time, and those that were given a seed, must not choose alike."""


def free_port_run(length: int) -> int:
    """The first of so many neighbouring ports that nobody listens on now."""
    for _ in range(TRIES_MAX):
        start = _RANDOM.randrange(FIRST, END - length)
        with ExitStack() as stack:
            try:
                for port in range(start, start + length):
                    stack.enter_context(socket.socket()).bind((HOST, port))
            except OSError:
                continue
            return start
    raise OSError(f"there are no {length} free ports between {FIRST} and {END}")


def free_port() -> int:
    """A port that nobody listens on now. A broker has its port in its message ids, so it cannot take port 0 itself."""
    return free_port_run(1)


def free_ports(count: int) -> list[int]:
    """Different ones."""
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return list(ports)


def free_broker_port() -> int:
    """One whose neighbours are free as well: the fast port two below it, and that for replication above it."""
    return free_port_run(4) + 2
