"""Ports for servers of a test, outside of the kernel's range of ephemeral ports.

A free port in that range may be used by another connection when its server starts to listen on it. And a free port may
be chosen by a second run of tests at the same time: so a run binds an abstract socket with its number first, which only
one process can, and keeps it until it has chosen many others.
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
"""The end of our range; Linux's ephemeral ports begin at 32768."""
TRIES_MAX: Final = 1000
_RANDOM: Final = random.SystemRandom()
"""The generator has its own seed: concurrent tests, and tests with a fixed seed, must not choose the same ports."""

CHOSEN_MAX: Final = 256
_CHOSEN: Final[deque[int]] = deque()
"""The descriptors of the last names, kept until the process ends or many later ports were chosen."""


def free_port_run(length: int) -> int:
    """Return the first of so many neighbouring free ports."""
    for _ in range(TRIES_MAX):
        start = _RANDOM.randrange(FIRST, END - length)
        with ExitStack() as stack:
            try:
                names = [_reserve_port(port, stack) for port in range(start, start + length)]
            except OSError:
                continue
            _CHOSEN.extend(name.detach() for name in names)
            while len(_CHOSEN) > CHOSEN_MAX:
                os.close(_CHOSEN.popleft())
            return start
    raise OSError(f"no {length} consecutive free ports between {FIRST} and {END}")


def _reserve_port(port: int, stack: ExitStack) -> socket.socket:
    """Return a socket that reserves the port for us. Raises OSError if the port is used or reserved."""
    stack.enter_context(socket.socket()).bind((HOST, port))
    name = stack.enter_context(socket.socket(socket.AF_UNIX))
    name.bind(f"\0gantry-test-port-{port}")
    return name


def free_port() -> int:
    """Return a free port. A broker has its port in its message ids, so it cannot use port 0 itself."""
    return free_port_run(1)


def free_ports(count: int) -> list[int]:
    """Return several different free ports."""
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return list(ports)


def free_broker_port() -> int:
    """Return a port whose neighbours are free too: the fast port two below it, and the replication port above it."""
    return free_port_run(4) + 2
