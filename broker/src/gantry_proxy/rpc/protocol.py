"""gRPC's own conventions on HTTP/2: methods, statuses, deadlines, and the bytes around each message.

request    :method POST, :path /service/method, content-type application/grpc, grpc-timeout, grpc-encoding,
           headers of the client
messages   [ compressed 1 | length 4 | message ] ...
reply      :status 200, content-type; messages; grpc-status, grpc-message
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, Final, final
from urllib.parse import quote

from gantry_proxy.http2 import hpack

PREFIX_BYTES: Final = 5
CONTENT_TYPE: Final = "application/grpc"
ENCODING: Final = "grpc-encoding"
"""The header with the encoding of a client's compressed messages."""
IDENTITY: Final = "identity"
GZIP: Final = "gzip"
ACCEPTED_ENCODINGS: Final = f"{IDENTITY},{GZIP}"
"""What a client may use; replies are never compressed."""
_TIMEOUT_DIGITS_MAX: Final = 8
_TIMEOUT_UNITS_S: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_TEXT_BYTES_MAX: Final = 1_024
_PLAIN: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
"""The characters of a status text that are sent as they are."""


class StatusCode(IntEnum):
    """The outcome of a call, apart from what its reply says."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class CallFailed(Exception):
    """A handler ends its call with a status instead of a reply."""

    def __init__(self, code: StatusCode, text: str) -> None:
        super().__init__(text)
        self.code: Final = code


class MethodKind(Enum):
    """How many messages the two sides of a method send."""

    UNARY = "one request, one reply"
    STREAMING = "one request, any number of replies"
    BIDIRECTIONAL = "any number of both"


@final
@dataclass(frozen=True, slots=True)
class Method:
    """One method of a service.

    ``handle`` gets the request and the call, and returns the reply of a UNARY method. That of a STREAMING method gets
    the same, and writes its replies. That of a BIDIRECTIONAL one gets None for the request, and reads and writes.
    """

    kind: MethodKind
    handle: Callable[[Any, Any], Awaitable[Any]]
    read: Callable[[bytes], Any]
    """Returns the message of its bytes; any exception means that they are malformed."""

    write: Callable[[Any], bytes]

    begin: Callable[[Any, Any], bool] | None = None
    """A shortcut of a UNARY method: begins a call without a task, whose `finish` is called later.

    Returns False, with nothing done, if only ``handle`` can serve the call. It must not raise.
    """

    is_endless: bool = False
    """Whether a call lasts as long as its client wants, so that an orderly stop ends it instead of waiting."""


HEADERS: Final = b"\x88" + hpack.encode(
    [(b"content-type", CONTENT_TYPE.encode()), (b"grpc-accept-encoding", ACCEPTED_ENCODINGS.encode())]
)
"""The headers of every reply; the first byte is `:status 200` in the table."""
OK_TRAILERS: Final = hpack.encode([(b"grpc-status", b"0")])


def failure_trailers(code: StatusCode, text: str) -> bytes:
    """Return the end of a reply that has headers already."""
    message = quote(text.encode()[:_TEXT_BYTES_MAX], safe=_PLAIN)
    return hpack.encode([(b"grpc-status", str(int(code)).encode()), (b"grpc-message", message.encode())])


def failure_headers(code: StatusCode, text: str) -> bytes:
    """Return a reply that consists of headers only."""
    return HEADERS + failure_trailers(code, text)


def http_failure(status: int) -> bytes:
    """Return a reply to a request that is not one of gRPC."""
    return hpack.encode([(b":status", str(status).encode())])


def parse_timeout_s(text: str) -> float | None:
    """Return the seconds of a `grpc-timeout`; None if the text is not one."""
    digits, factor = text[:-1], _TIMEOUT_UNITS_S.get(text[-1:])
    is_number = digits.isdigit() and digits.isascii() and len(digits) <= _TIMEOUT_DIGITS_MAX
    return int(digits) * factor if factor is not None and is_number else None


def with_prefix(message: bytes) -> bytes:
    """Return a message as it is sent."""
    return len(message).to_bytes(PREFIX_BYTES, "big") + message  # the first byte, 0, is that of a message as it is
