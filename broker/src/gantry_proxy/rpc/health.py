"""The health protocol of gRPC, `grpc.health.v1`: whether clients may be sent to this server.

request  field 1, a text: the name of a service, or empty for the whole server
reply    field 1, a number: 1 serving, 2 not serving, 3 unknown service
"""

import asyncio
from collections import Counter
from typing import Final, final

from gantry_proxy.rpc.call import Call
from gantry_proxy.rpc.protocol import CallFailed, Method, MethodKind, StatusCode

SERVICE: Final = "grpc.health.v1.Health"
SERVING: Final = 1
NOT_SERVING: Final = 2
UNKNOWN_SERVICE: Final = 3
WATCHES_MAX: Final = 1_024
"""How many watches there may be. They need no account and have no end, so that they must not use up the calls."""
WATCHES_PER_ADDRESS_MAX: Final = 256
"""The same for the clients at one address; a client that watches does so once for each connection."""
_NAME_TAG: Final = b"\x0a"
_NAME_BYTES_MAX: Final = 127
"""The longest name whose length takes one byte, as that of every service of this server does."""


@final
class Health:
    """The state of some services, and those who watch it. Owned by the event loop."""

    def __init__(self, names: frozenset[str]) -> None:
        """Answer for these services and for the server, whose name is empty."""
        self._names: Final = names | {""}
        self._state = NOT_SERVING
        self._changed = asyncio.Event()
        self._watches: Final[Counter[str]] = Counter()
        """How many watches each address has."""

    def __repr__(self) -> str:
        return f"<Health {self._state}>"

    def set_state(self, state: int) -> None:
        """Report this state from now on, also to those who watch."""
        self._state = state
        self._changed.set()
        self._changed = asyncio.Event()

    def methods(self) -> dict[str, Method]:
        """Return the methods by path."""
        return {
            f"/{SERVICE}/Check": Method(MethodKind.UNARY, self._check, _read_name, _write_state),
            f"/{SERVICE}/Watch": Method(MethodKind.STREAMING, self._watch, _read_name, _write_state, is_endless=True),
        }

    async def _check(self, name: str, _call: Call) -> int:
        if name not in self._names:
            raise CallFailed(StatusCode.NOT_FOUND, f"unknown service {name[:64]!r}")
        return self._state

    async def _watch(self, name: str, call: Call) -> None:
        watches = self._watches
        if watches.total() >= WATCHES_MAX or watches[call.peer] >= WATCHES_PER_ADDRESS_MAX:
            raise CallFailed(StatusCode.RESOURCE_EXHAUSTED, "too many clients watch the health: call Check")
        watches[call.peer] += 1
        try:
            await self._report(name, call)
        finally:
            watches[call.peer] -= 1
            if not watches[call.peer]:
                del watches[call.peer]

    async def _report(self, name: str, call: Call) -> None:
        """Send the state of a service now, and after each change."""
        if name not in self._names:
            await call.write(UNKNOWN_SERVICE)
            await asyncio.get_running_loop().create_future()  # until the client goes away
        while True:
            changed = self._changed
            await call.write(self._state)
            await changed.wait()


def _read_name(message: bytes) -> str:
    if not message:
        return ""
    size = len(message) - 2
    if message[:1] != _NAME_TAG or not 0 <= size <= _NAME_BYTES_MAX or message[1] != size:
        raise ValueError("not a request of the health protocol")
    return message[2:].decode()


def _write_state(state: int) -> bytes:
    return bytes((0x08, state))
