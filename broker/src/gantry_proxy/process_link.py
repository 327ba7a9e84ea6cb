"""The link between the main process of a proxy and one that serves clients: messages, and accepted connections.

    main process -> serving process   `Begin`, `MetricsRequest`; on a second pair of sockets: accepted connections
    serving process -> main process   `Started` or `StartFailed`, then `Report` every second, and `Metrics`

Both pairs are Unix sockets that only the two processes have. The end of either process closes the link, so that the
other one notices it without a timeout.
"""

import asyncio
import contextlib
import socket
from typing import Final, final

import msgspec

from gantry_proxy.metrics import MetricFamily
from gantry_proxy.settings import ProxySettings

REPORT_INTERVAL_S: Final = 1.0
"""How often a serving process reports."""
MESSAGE_BYTES_MAX: Final = 4 << 20
"""The largest message; metrics have some tens of KiB."""
SOCKETS_PER_TURN: Final = 16
"""How many connections a serving process takes in one turn of its loop."""


class Begin(msgspec.Struct, frozen=True, tag=True):
    """The first message to a serving process."""

    settings: ProxySettings
    """Those of the whole proxy."""


class MetricsRequest(msgspec.Struct, frozen=True, tag=True):
    """A request of the main process for `Metrics`."""


class Started(msgspec.Struct, frozen=True, tag=True):
    """The process serves clients from now on."""


class StartFailed(msgspec.Struct, frozen=True, tag=True):
    """The process cannot start, and ends."""

    reason: str
    is_settings_error: bool


class Report(msgspec.Struct, frozen=True, tag=True):
    """The state of a serving process."""

    closed: int = 0
    """How many of the connections that it was given are closed."""

    not_ready_reason: str = ""


class Metrics(msgspec.Struct, frozen=True, tag=True):
    """The metrics of a serving process."""

    families: list[MetricFamily]


Message = Begin | MetricsRequest | Started | StartFailed | Report | Metrics
_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(Message)


@final
class MessageLink:
    """One end of the messages: one JSON document in each line. Owned by the event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader: Final = reader
        self._writer: Final = writer

    @classmethod
    async def open(cls, end: socket.socket) -> "MessageLink":
        """Return the link over one end of a pair of sockets."""
        return cls(*await asyncio.open_unix_connection(sock=end, limit=MESSAGE_BYTES_MAX))

    def send(self, message: Message) -> None:
        """Send a message. Without effect if the other process has ended."""
        if not self._writer.is_closing():
            self._writer.write(_ENCODER.encode(message) + b"\n")

    async def flush(self) -> None:
        """Wait until the kernel has what was sent, so that this process may end."""
        with contextlib.suppress(OSError):
            await self._writer.drain()

    async def receive(self) -> Message | None:
        """Return the next message; None when the other process has ended. Raises msgspec.DecodeError."""
        try:
            line = await self._reader.readuntil()
        except (asyncio.IncompleteReadError, OSError):
            return None
        message: Message = _DECODER.decode(line)
        return message

    def close(self) -> None:
        self._writer.close()


def pass_socket(end: socket.socket, accepted: socket.socket) -> bool:
    """Give an accepted connection to the process at the other end; return False if it does not take it.

    ``end`` does not block: Python 3.11 ignores the flags of `send_fds`.
    """
    try:
        socket.send_fds(end, [b"c"], [accepted.fileno()])
    except OSError:  # it has ended, or has many connections that it has not taken yet
        return False
    return True


def take_sockets(end: socket.socket) -> list[socket.socket]:
    """Return the connections that have been passed to this process, at most `SOCKETS_PER_TURN`.

    ``end`` does not block.
    """
    found: list[socket.socket] = []
    for _ in range(SOCKETS_PER_TURN):
        try:
            data, descriptors, _flags, _address = socket.recv_fds(end, 1, 1)
        except OSError:  # none is left
            break
        if not data:  # the main process has ended
            break
        for descriptor in descriptors:
            accepted = socket.socket(fileno=descriptor)
            accepted.setblocking(False)
            found.append(accepted)
    return found
