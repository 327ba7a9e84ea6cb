"""The messages of a client on a BIDIRECTIONAL call, collected from the bytes of its stream.

    [ message | message ] [ beginning of the next ]
      wait for the handler   at most one, of at most the largest message

Bytes of messages that wait stay in the window of the stream, so that a client cannot send more than a window ahead of
the handler. Those of the next message leave it at once while no other one waits: otherwise a message that is larger
than the window would never be complete.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, final

from gantry_proxy.http2.streams import Stream
from gantry_proxy.rpc.compression import check_flag
from gantry_proxy.rpc.protocol import PREFIX_BYTES, CallFailed, StatusCode


@final
class IncomingMessages:
    """What the client of one call has sent and the handler has not read. Owned by the call."""

    __slots__ = ("_begun_at_s", "_buffer", "_full_window", "_messages", "_returned", "_stream")

    def __init__(self, stream: Stream, full_window: int) -> None:
        """``full_window`` is how many bytes of a stream a client may send before they are processed."""
        self._stream: Final = stream
        self._full_window: Final = full_window
        self._messages: Final[deque[tuple[bytes, int]]] = deque()
        """Complete messages with their prefixes, each with how many of its bytes are in the window."""
        self._buffer: Final = bytearray()
        """The beginning of the next message."""
        self._returned = 0
        """How many bytes of it have left the window."""
        self._begun_at_s = 0.0
        """Since when the client could have sent the rest of it."""

    def __len__(self) -> int:
        return len(self._messages)

    def __repr__(self) -> str:
        return f"<IncomingMessages waiting={len(self._messages)} incomplete={len(self._buffer)}>"

    def add(self, data: bytes, now_s: float, check: Callable[[bytearray], bool]) -> bool:
        """Add bytes of the client. Return False as soon as ``check`` refuses the beginning of a message."""
        buffer = self._buffer
        if not buffer:
            self._begun_at_s = now_s
        buffer += data
        while check(buffer):
            end = PREFIX_BYTES + int.from_bytes(buffer[1:PREFIX_BYTES], "big")
            if len(buffer) < end:
                self._return_window()
                return True
            self._messages.append((bytes(buffer[:end]), end - self._returned))
            self._returned, self._begun_at_s = 0, now_s
            del buffer[:end]
        return False

    def take(self, now_s: float) -> bytes:
        """Return the next message with its prefix. There must be one."""
        message, in_window = self._messages.popleft()
        self._stream.consume(in_window, self._full_window)
        if not self._messages:
            self._begun_at_s = now_s
            self._return_window()
        return message

    def is_overdue(self, now_s: float, timeout_s: float) -> bool:
        """Return whether the client takes too long to complete a message for which the handler waits."""
        return bool(self._buffer) and not self._messages and now_s - self._begun_at_s > timeout_s

    def clear(self) -> None:
        """Forget everything: the call has ended."""
        self._messages.clear()
        self._buffer.clear()

    def _return_window(self) -> None:
        size = len(self._buffer) - self._returned
        if size and not self._messages:
            self._returned += size
            self._stream.consume(size, self._full_window)


def check_prefix(buffer: bytes | bytearray, encoding: str, bytes_max: int) -> None:
    """Raise CallFailed if the message with this prefix is too large, or has a compression that cannot be read.

    ``encoding`` is the `grpc-encoding` of the call.
    """
    size = int.from_bytes(buffer[1:PREFIX_BYTES], "big")
    if size > bytes_max:
        raise CallFailed(
            StatusCode.RESOURCE_EXHAUSTED, f"the message has {size} bytes, at most {bytes_max} are allowed"
        )
    check_flag(buffer[0], encoding)
