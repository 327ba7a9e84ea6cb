"""The smallest possible remoting client: one request in JSON, one answer.

Used to see whether a peer is ready. Written apart from `gantry_wire` on purpose: the harness must not believe a peer
because both share a mistake.
"""

from __future__ import annotations

import itertools
import json
import socket
import struct

from gantry_interop.frames import WireFrame, parse

GET_ROUTE_BY_TOPIC = 105
UPDATE_TOPIC = 17
VERSION_5_3_3 = 479

_opaques = itertools.count(1)


def ask(address: str, code: int, fields: dict[str, str] | None = None, seconds_max: float = 3.0) -> WireFrame:
    """Send one request and read its response; raises OSError when nobody answers."""
    header = json.dumps(
        {
            "code": code,
            "extFields": fields or {},
            "flag": 0,
            "language": "PYTHON",
            "opaque": next(_opaques),
            "serializeTypeCurrentRPC": "JSON",
            "version": VERSION_5_3_3,
        }
    ).encode()
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host.strip("[]"), int(port)), seconds_max) as connection:
        connection.settimeout(seconds_max)
        connection.sendall(struct.pack(">II", 4 + len(header), len(header)) + header)
        head = _read(connection, 4)
        return parse(head + _read(connection, int.from_bytes(head, "big")))


def knows_topic(name_server: str, topic: str) -> bool:
    """Whether the name server has a route for this topic; False also while nobody listens there."""
    try:
        return ask(name_server, GET_ROUTE_BY_TOPIC, {"topic": topic, "acceptStandardJsonOnly": "true"}).code == 0
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
