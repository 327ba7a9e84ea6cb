"""The server of the control socket: one order a line, answered in order.

Only the broker's own user (and root) can open the socket, so every client may give every order. All orders except
``status`` and successful renewals of a Lease are written to the log and to the audit log, with the client's process. An
invalid line is answered with the reason, and its connection is closed, because a client of ours never sends one. A
client that sends garbage, or does not read, costs at most one of sixteen connections, for a limited time. An order that
has begun is finished even if its client has disconnected. ``status`` is answered while the order of another connection
still runs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
import struct
from contextlib import suppress
from typing import Final, NamedTuple, final

import msgspec

from gantry_broker.control.orders import Orders, execute_order, truncate_reason, wire_name
from gantry_remoting.audit import write_audit_line
from gantry_remoting.close_log import LimitedLog
from gantry_status.orders import (
    LINE_BYTES_MAX,
    AnyAnswer,
    AnyOrder,
    BadLine,
    Failed,
    Lease,
    Refused,
    StatusRequest,
    decode_order,
    encode,
)
from gantry_status.socket_path import socket_address

log = logging.getLogger(__name__)

BACKLOG: Final = 64
"""Length of the kernel's queue of connections that the event loop has not accepted yet."""

CONNECTIONS_MAX: Final = 16
"""Largest number of connections; a supervisor needs one or two."""

IDLE_S: Final = 300.0
"""Seconds after which a silent connection is closed; clients reconnect by themselves."""
TRANSFER_S: Final = 10.0
"""Longest time from the first byte of a line to its last, and for an answer to be read, in seconds."""
_PEER: Final = struct.Struct("3i")
"""The kernel's ``struct ucred``: process, user and group id of a client."""


class Peer(NamedTuple):
    """The process of a client, as the kernel reports it."""

    pid: int
    uid: int


@final
class SocketFile:
    """A listening socket with a name, created atomically, for its own user alone. One thread at a time.

        bind <path>.<pid>  --chmod 0600-->  listen  --rename-->  <path>

    No client can connect before the socket listens, so another user can never connect, and the path never leads to a
    socket that refuses connections. A socket that a dead broker left at the path is replaced. So would be the socket of
    a running broker; the lock of the store excludes that, so acquire it first.
    """

    def __init__(self, path: str) -> None:
        """Listen at ``path``. Raises OSError with the path in it; another kind of file there is not replaced."""
        self.path: Final = path
        _refuse_other_file(path)
        temporary = f"{path}.{os.getpid()}"
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        self.socket: Final = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            with socket_address(temporary) as address:
                self.socket.bind(address)
            os.chmod(temporary, 0o600)
            self.socket.listen(BACKLOG)
            self._identity: Final = _identity(temporary)
            os.replace(temporary, path)
        except BaseException as error:
            self.socket.close()
            with suppress(OSError):
                os.unlink(temporary)
            if isinstance(error, OSError) and error.filename is None:
                raise OSError(error.errno, error.strerror or str(error), path) from error
            raise

    def remove(self) -> None:
        """Remove the name, if it still leads to this socket. The server closes the socket itself."""
        with suppress(FileNotFoundError):
            if _identity(self.path) == self._identity:
                os.unlink(self.path)


def _identity(path: str) -> tuple[int, int]:
    facts = os.lstat(path)
    return facts.st_dev, facts.st_ino


def _refuse_other_file(path: str) -> None:
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise FileExistsError(17, "the path of the control socket is taken by a file that is not a socket", path)


@final
class ControlServer:
    """Serves the control socket from ``start`` to ``close``. Owned by the loop."""

    def __init__(self, path: str, orders: Orders, *, idle_s: float = IDLE_S, transfer_s: float = TRANSFER_S) -> None:
        self.path: Final = path
        self._orders: Final = orders
        self._idle_s: Final = idle_s
        self._transfer_s: Final = transfer_s
        self._file: SocketFile | None = None
        self._server: asyncio.Server | None = None
        self._is_closing = False
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self._failures: Final = LimitedLog(log)

    def __repr__(self) -> str:
        return f"<ControlServer {self.path} connections={self.connections}>"

    @property
    def connections(self) -> int:
        """Number of connections that are open now."""
        return len(self._tasks)

    async def start(self) -> None:
        """Listen. Call it when the store's lock is held. Raises OSError with the path in it."""
        file = SocketFile(self.path)
        try:
            self._server = await asyncio.start_unix_server(
                self._accept, sock=file.socket, limit=LINE_BYTES_MAX, backlog=BACKLOG
            )
        except BaseException:
            file.remove()
            file.socket.close()
            raise
        self._file = file

    async def close(self) -> None:
        """Stop listening, and end every connection. An order in progress is cancelled."""
        self._is_closing = True
        if self._file is not None:
            self._file.remove()
        if self._server is not None:
            self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks))
        if self._server is not None:
            await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a connection is served by a task"
        if len(self._tasks) >= CONNECTIONS_MAX:
            writer.write(
                encode(Failed(reason=f"too many connections: {CONNECTIONS_MAX} are open; close one and try again"))
            )
            writer.close()
            return
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await self._serve(reader, writer, _peer_of(writer))
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError):
            pass  # The client has disconnected, or has stopped in the middle of a line.
        except Exception as error:  # noqa: BLE001 - a callback's exception costs its own connection and no more
            self._failures.log_callback_failure("control socket", "accept", error)
        except asyncio.CancelledError:
            if not self._is_closing:  # asyncio logs a cancelled handler as an error; this one is meant to end.
                raise
        finally:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: Peer) -> None:
        """Serve orders until the client disconnects or sends an invalid line."""
        while True:
            try:
                line = await self._read_line(reader)
                if not line:
                    return
                order = decode_order(line)
            except BadLine as error:
                log.warning("invalid line on the control socket", extra={**peer._asdict(), "reason": str(error)})
                await self._write(writer, Failed(reason=truncate_reason(str(error))))
                writer.close()
                async with asyncio.timeout(self._transfer_s):
                    await writer.wait_closed()
                return
            await self._write(writer, await self._execute_and_log(order, peer))

    async def _read_line(self, reader: asyncio.StreamReader) -> bytes:
        """Read one line; empty at the connection's end. Raises ``BadLine`` if it is too long."""
        async with asyncio.timeout(self._idle_s):
            first = await reader.read(1)
        if first in (b"", b"\n"):
            return first
        try:
            async with asyncio.timeout(self._transfer_s):
                return first + await reader.readuntil(b"\n")
        except asyncio.LimitOverrunError as error:
            raise BadLine(f"a line is longer than {LINE_BYTES_MAX} bytes") from error

    async def _write(self, writer: asyncio.StreamWriter, answer: AnyAnswer) -> None:
        writer.write(encode(answer))
        async with asyncio.timeout(self._transfer_s):
            await writer.drain()

    async def _execute_and_log(self, order: AnyOrder, peer: Peer) -> AnyAnswer:
        """Execute an order, and log the client, the order and its outcome, even after an exception."""
        if isinstance(order, StatusRequest):
            return await execute_order(self._orders, order)
        loop = asyncio.get_running_loop()
        began, outcome, reason = loop.time(), "not completed", ""
        try:
            answer = await execute_order(self._orders, order)
            outcome = wire_name(answer)
            reason = answer.reason if isinstance(answer, Refused | Failed) else ""
        finally:
            took_ms = round((loop.time() - began) * 1000)
            facts = {**peer._asdict(), "order": order, "answer": outcome, "reason": reason, "took_ms": took_ms}
            # A Lease is renewed every few seconds; a log line for each renewal would bury all others.
            is_routine = isinstance(order, Lease) and not reason
            log.log(logging.DEBUG if is_routine else logging.INFO, "order handled", extra=facts)
            if not is_routine:
                on = {name: value for name, value in msgspec.to_builtins(order).items() if name != "order"}
                write_audit_line(
                    "control", peer=f"pid={peer.pid} uid={peer.uid}", account=None, what=wire_name(order), code=None,
                    on=on, outcome=outcome, reason=reason,
                )  # fmt: skip
        return answer


def _peer_of(writer: asyncio.StreamWriter) -> Peer:
    """Return the process of the client.

    The kernel is asked through a copy of the descriptor, since a loop's socket object need not be a socket.
    """
    with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as copy:
        pid, uid, _ = _PEER.unpack(copy.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return Peer(pid, uid)
