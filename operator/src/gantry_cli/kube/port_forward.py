"""One connection to a port of a pod over the API server, with the right `pods/portforward`.

    this program --- a socket pair --- this thread --- web socket --- API server --- kubelet --- the pod's port

The first byte of a message is its channel: 0 for data, 1 for errors. Both channels begin with the number of the port in
two bytes. The protocol cannot close one direction only, so the end of either side closes both. A web socket carries
one connection; more connections use more of them.

Nothing is buffered here beyond one message: a side that does not read stops the other one, and after a time limit the
connection is closed.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
from contextlib import closing, suppress
from typing import Any, Final, NamedTuple

from gantry_cli.kube.api_errors import ApiError, resource_text
from gantry_cli.kube.cluster import Cluster
from gantry_cli.kube.naming import PODS
from gantry_cli.kube.sidecars import PROTOCOL, REASON_MAX, within

DATA, ERRORS = 0, 1
"""The channels of the only port."""
PORT_BYTES: Final = 2
"""The length of the port's number at the beginning of each channel."""
OPEN_TIMEOUT_S: Final = 10.0
"""How long the web socket and the first message of each channel may take."""
TRANSFER_TIMEOUT_S: Final = 30.0
"""How long a side may not read before the connection is closed, and how long a message may take to be complete."""
PIECE_BYTES: Final = 32 * 1024
"""The bytes that one message carries to the pod."""
MESSAGE_BYTES_MAX: Final = 4 << 20
"""The longest message of the API server that is accepted. The kubelet sends at most 32 KiB at a time."""
CLOSE_OPCODE: Final = 0x8
DATA_OPCODES: Final = (0x1, 0x2)


def forward_port(cluster: Cluster, pod: str, port: int) -> socket.socket:
    """Return a socket that is connected to a port of a pod. Blocks, with a time limit. Raises ``ApiError``.

    That the port refuses a connection may become known only later, as the end of the returned socket.
    """
    what = resource_text(PODS, cluster.namespace, "portforward")

    def open_socket() -> Any:
        path = PODS.path(cluster.namespace, pod, "portforward")
        opened = cluster.socket(path, [("ports", str(port))], PROTOCOL)
        try:
            opened.settimeout(OPEN_TIMEOUT_S)
            _read_port_numbers(opened, what, port)
        except BaseException:
            opened.shutdown()
            raise
        return opened

    late = f"the port was not forwarded within {OPEN_TIMEOUT_S:g} s"
    web_socket = within(OPEN_TIMEOUT_S, f"gantry-forward-{pod}", what, open_socket, late)
    near, far = socket.socketpair()
    far.settimeout(TRANSFER_TIMEOUT_S)
    web_socket.settimeout(TRANSFER_TIMEOUT_S)
    threading.Thread(target=_transfer, args=(web_socket, far), name=f"gantry-forward-{pod}", daemon=True).start()
    return near


class Message(NamedTuple):
    """A message of the API server."""

    channel: int
    content: bytes


def _read_port_numbers(web_socket: Any, what: str, port: int) -> None:
    """Read the beginnings of both channels. Raises ``ApiError``."""
    awaited = {DATA, ERRORS}
    while awaited:
        message = _receive(web_socket)
        if message is None:
            raise ApiError("create", what, 0, "the API server closed the connection")
        if message.channel not in awaited:
            continue
        if len(message.content) < PORT_BYTES or struct.unpack("<H", message.content[:PORT_BYTES]) != (port,):
            raise ApiError("create", what, 0, "the API server does not use the expected protocol")
        if message.channel == ERRORS and len(message.content) > PORT_BYTES:
            raise ApiError("create", what, 0, _text(message.content[PORT_BYTES:]))
        awaited.discard(message.channel)


def _transfer(web_socket: Any, far: socket.socket) -> None:
    """Pass data in both directions until either side ends or fails, then close both."""
    # Any failure of the web socket's package ends this connection only.
    with closing(far), suppress(Exception):
        while _transfer_once(web_socket, far):
            pass
    web_socket.shutdown()


def _transfer_once(web_socket: Any, far: socket.socket) -> bool:
    """Wait for data of either side, and pass it on. Return whether the connection stays open."""
    wire = web_socket.sock
    has_pending = getattr(wire, "pending", int)() > 0  # decrypted bytes, for which no descriptor becomes readable
    readable = [wire] if has_pending else select.select([wire, far], [], [])[0]
    if wire in readable:
        message = _receive(web_socket)
        if message is None or (message.channel == ERRORS and message.content):
            return False
        if message.channel == DATA:
            far.sendall(message.content)
    if far in readable:
        piece = far.recv(PIECE_BYTES)
        if not piece:
            return False
        web_socket.send_binary(bytes((DATA,)) + piece)
    return True


def _receive(web_socket: Any) -> Message | None:
    """Return the next message; None at the end. A ping is answered by the package, and yields an empty message."""
    opcode, data = web_socket.recv_data(control_frame=True)
    if opcode == CLOSE_OPCODE:
        return None
    if opcode not in DATA_OPCODES or not data:
        return Message(DATA, b"")
    if len(data) > MESSAGE_BYTES_MAX:
        raise ValueError("the message is too long")
    return Message(data[0], bytes(data[1:]))


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace").strip()[:REASON_MAX]
