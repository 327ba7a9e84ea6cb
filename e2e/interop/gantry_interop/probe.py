"""A minimal remoting client: one request in JSON, one answer.

It checks whether a peer is ready, and reads a store through the protocol (`snapshot`). It is independent of
`gantry_wire` on purpose: the harness must not trust a peer because both have the same bug.
"""

from __future__ import annotations

import itertools
import json
import socket
import struct

from gantry_interop.frames import WireFrame, parse

GET_ROUTE_BY_TOPIC = 105
UPDATE_TOPIC = 17
PROTOCOL_VERSION = 513
"""The ordinal of RocketMQ 5.5.0 in its list of versions."""

_opaques = itertools.count(1)


def send_request(address: str, code: int, fields: dict[str, str] | None = None, seconds_max: float = 3.0) -> WireFrame:
    """Send one request and read its response. Raises OSError if there is no answer."""
    header = json.dumps(
        {
            "code": code,
            "extFields": fields or {},
            "flag": 0,
            "language": "PYTHON",
            "opaque": next(_opaques),
            "serializeTypeCurrentRPC": "JSON",
            "version": PROTOCOL_VERSION,
        }
    ).encode()
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host.strip("[]"), int(port)), seconds_max) as connection:
        connection.settimeout(seconds_max)
        connection.sendall(struct.pack(">II", 4 + len(header), len(header)) + header)
        head = _read(connection, 4)
        return parse(head + _read(connection, int.from_bytes(head, "big")))


def has_route(name_server: str, topic: str) -> bool:
    """Return whether the name server has a route for this topic; also False while it does not listen."""
    try:
        fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
        return send_request(name_server, GET_ROUTE_BY_TOPIC, fields).code == 0
    except OSError:
        return False


def _read(connection: socket.socket, length: int) -> bytes:
    chunks = bytearray()
    while len(chunks) < length:
        chunk = connection.recv(length - len(chunks))
        if not chunk:
            raise ConnectionError("the peer closed the connection in the middle of an answer")
        chunks += chunk
    return bytes(chunks)
