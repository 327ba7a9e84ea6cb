"""The limits of a gRPC port: what its clients may take together, and how long they may take."""

from dataclasses import dataclass, field
from typing import final


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RpcTimes:
    """How long clients of a port may take."""

    sweep_interval_s: float = 2.0
    """How often the timeouts of connections are checked."""

    preface_s: float = 30.0
    """For the handshake and the first bytes of HTTP/2; also on a machine without idle time."""

    keepalive_s: float = 60.0
    """After this time without data a client is pinged, and `keepalive_answer_s` later a dead one is disconnected."""

    keepalive_answer_s: float = 20.0
    """How long the answer to that ping may take."""

    request_s: float = 60.0
    """For a request, or one message of a stream; otherwise some clients could hold the bytes that all of them share."""

    tight_request_s: float = 5.0
    """The same while the port is almost full."""

    reply_s: float = 20.0
    """For reading the reply of a unary call."""

    transport_s: float = 25.0
    """How long the transport may stay full; longer than `reply_s`, and than a handler that writes waits."""

    drain_notice_s: float = 1.0
    """How long calls that a client opened before it read the notice of the end are served."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RpcLimits:
    """The limits of what all clients together may cost."""

    message_bytes_max: int
    """The largest request."""

    header_bytes_max: int
    """The largest headers of a call."""

    streams_per_connection_max: int
    """How many calls one connection may have."""

    connections_max: int
    """How many connections may be open."""

    calls_max: int
    """How many calls may be open, incomplete ones included."""

    processes: int = 1
    """How many processes serve the port. Each has an equal part of the bytes; the other limits are those of one."""

    held_bytes_max: int = 256 << 20
    """How many bytes of incomplete requests and unread replies all clients may occupy together."""

    unsent_bytes_max: int = 256 << 10
    """How many bytes the transport of one client may hold; replies beyond it wait in their streams. The kernel has
    buffers of its own, so that a client that reads is not slowed down."""

    handshakes_max: int = 1_000
    """How many TLS handshakes may be in progress; each may hold some tens of KiB."""

    address_factor: int = 3
    """How many times what is free an address may have."""

    times: RpcTimes = field(default_factory=RpcTimes)
    """How long the clients may take."""
