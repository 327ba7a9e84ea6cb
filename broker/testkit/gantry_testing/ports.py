"""Ports for servers of a test, out of the range from which the kernel takes those of connections.

A port that is free now and lies in that range may belong to somebody's connection when its server comes to
listen on it. And one that is free now may be chosen by a second run of tests in that moment: whoever chooses it binds
a socket of its name first, which nobody else can, and keeps that until it has chosen many others.
"""

from __future__ import annotations

import os
import random
import socket
from collections import deque
from contextlib import ExitStack
from typing import Final

HOST: Final = "127.0.0.1"
FIRST: Final = 20_000
END: Final = 32_000
"""Linux begins at 32768."""
TRIES_MAX: Final = 1000
_RANDOM: Final = random.SystemRandom()
"""Tests that run at the same time, and those that were given a seed, must not choose alike."""

CHOSEN_MAX: Final = 256
_CHOSEN: Final[deque[int]] = deque()
"""The descriptors of the names of the last ones: until the end of this process, or until others are so many."""


def free_port_run(length: int) -> int:
    """The first of so many neighbouring ports that nobody listens on now."""
    for _ in range(TRIES_MAX):
        start = _RANDOM.randrange(FIRST, END - length)
        with ExitStack() as stack:
            try:
                names = [_named(port, stack) for port in range(start, start + length)]
            except OSError:
                continue
            _CHOSEN.extend(name.detach() for name in names)
            while len(_CHOSEN) > CHOSEN_MAX:
                os.close(_CHOSEN.popleft())
            return start
    raise OSError(f"there are no {length} free ports between {FIRST} and {END}")


def _named(port: int, stack: ExitStack) -> socket.socket:
    """A socket that says that the port is ours. Raises OSError when it is taken, or somebody else's."""
    stack.enter_context(socket.socket()).bind((HOST, port))
    name = stack.enter_context(socket.socket(socket.AF_UNIX))
    name.bind(f"\0gantry-test-port-{port}")
    return name


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
