"""Giving orders to a broker over its control socket: one connection, one order at a time.

A broker that does not answer must not hold up whoever asks, so every call has a deadline, and every failure names the
path. After a call that was not answered in time the connection is closed: the answer may still come, and would be taken
for the next one's. A connection that was kept and turns out to be closed is made anew, once, which is safe because an
order given twice does what it does once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, final, overload

from gantry_status.orders import (
    LINE_BYTES_MAX,
    AnyAnswer,
    AnyOrder,
    AskPromise,
    AskStatus,
    BadLine,
    BrokerUnreachable,
    Drain,
    Failed,
    HaStatus,
    OrderFailed,
    OrderRefused,
    OrderUnanswered,
    Promised,
    Refused,
    StatusOrder,
    decode_answer,
    encode,
)
from gantry_status.socket_path import socket_address

CONNECT_TIMEOUT_S: Final = 5.0
ANSWER_TIMEOUT_S: Final = 30.0
"""A promise waits for a disk, a promotion until everything in the log is dispatched."""

Check = Callable[[HaStatus], None]
"""Whether an order is for a broker with this status. Raises when it is not."""


@final
class OrderClient:
    """Owned by one event loop. Connects when it is needed; may be shared by tasks, whose orders then take turns."""

    def __init__(
        self, path: str, *, answer_timeout_s: float = ANSWER_TIMEOUT_S, is_one_connection: bool = False
    ) -> None:
        """Touches nothing: the broker need not be there yet.

        With ``is_one_connection`` a connection that has ended is never made anew, so that whatever was asked before
        was asked of the same process.
        """
        self.path: Final = path
        self._is_one_connection: Final = is_one_connection
        self._was_connected = False
        self._answer_timeout_s: Final = answer_timeout_s
        self._turn: Final = asyncio.Lock()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    def __repr__(self) -> str:
        return f"<OrderClient {self.path} {'connected' if self._streams is not None else 'idle'}>"

    async def __aenter__(self) -> OrderClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @overload
    async def call(self, order: AskPromise, *, timeout_s: float | None = None) -> Promised: ...

    @overload
    async def call(self, order: StatusOrder, *, timeout_s: float | None = None) -> HaStatus: ...

    async def call(self, order: AnyOrder, *, timeout_s: float | None = None) -> HaStatus | Promised:
        """Have it done. Raises a leaf of ``OrderError``; ``OrderRefused`` means that nothing has changed."""
        wait_s = self._timeout_s(order) if timeout_s is None else timeout_s
        async with self._turn:
            try:
                async with asyncio.timeout(wait_s):
                    answer = await self._exchange(order)
            except BaseException as error:
                await self.close()
                if isinstance(error, TimeoutError):
                    raise OrderUnanswered(f"{self.path}: no answer within {wait_s:g} s") from error
                raise
        match answer:
            case Refused():
                raise OrderRefused(answer.reason)
            case Failed():
                raise OrderFailed(f"{self.path}: {answer.reason}")
            case _:
                return answer

    async def call_checked(
        self, order: AnyOrder, check: Check | None, *, timeout_s: float | None = None
    ) -> HaStatus | Promised:
        """Have it done by a process whose status ``check`` accepts, asked on the same connection just before.

        Raises what ``check`` raises, or as ``call``.
        """
        if check is not None:
            assert self._is_one_connection, "another process must not obey than the one that was asked"
            check(await self.call(AskStatus(), timeout_s=timeout_s))
        return await self.call(order, timeout_s=timeout_s)

    async def close(self) -> None:
        """Let go of the connection. Another call makes a new one."""
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].transport.abort()
            with suppress(OSError):
                await streams[1].wait_closed()

    def _timeout_s(self, order: AnyOrder) -> float:
        """The time an order may take by itself comes on top."""
        return self._answer_timeout_s + (order.timeout_ms / 1000 if isinstance(order, Drain) else 0.0)

    async def _exchange(self, order: AnyOrder) -> AnyAnswer:
        """The answer to ``order``, of its own kind."""
        if self._streams is not None and (self._streams[0].at_eof() or self._streams[1].is_closing()):
            await self.close()
        was_kept = self._streams is not None
        line = await self._send_and_read(order)
        if not line and was_kept and not self._is_one_connection:
            await self.close()
            try:
                line = await self._send_and_read(order)
            except BrokerUnreachable as error:
                raise OrderUnanswered(f"the broker has closed the connection, and now {error}") from error
        if not line:
            raise OrderUnanswered(f"{self.path}: the broker closed the connection without an answer")
        try:
            answer = decode_answer(line)
        except BadLine as error:
            raise OrderUnanswered(f"{self.path}: {error}") from error
        if isinstance(answer, HaStatus | Promised) and isinstance(answer, Promised) != isinstance(order, AskPromise):
            raise OrderUnanswered(f"{self.path}: the answer belongs to another order")
        return answer

    async def _send_and_read(self, order: AnyOrder) -> bytes:
        """The line that answers; nothing if the connection ends first."""
        reader, writer = self._streams or await self._connect()
        try:
            writer.write(encode(order))
            await writer.drain()
            return await reader.readuntil(b"\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""
        except asyncio.LimitOverrunError as error:
            raise OrderUnanswered(f"{self.path}: the answer is longer than {LINE_BYTES_MAX} bytes") from error

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._is_one_connection and self._was_connected:
            raise BrokerUnreachable(f"{self.path}: the process that was asked before has closed the connection")
        self._was_connected = True
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                with socket_address(self.path) as address:
                    self._streams = await asyncio.open_unix_connection(address, limit=LINE_BYTES_MAX)
        except FileNotFoundError as error:
            raise BrokerUnreachable(f"there is no control socket at {self.path}") from error
        except ConnectionRefusedError as error:
            raise BrokerUnreachable(f"no broker listens at {self.path}: it was left by one that is gone") from error
        except TimeoutError as error:
            raise BrokerUnreachable(f"{self.path} takes no connection within {CONNECT_TIMEOUT_S:g} s") from error
        except OSError as error:
            raise BrokerUnreachable(f"{self.path} cannot be connected to: {error.strerror or error}") from error
        assert self._streams is not None, "connected"
        return self._streams


def order_once(path: str, order: AnyOrder, *, timeout_s: float | None = None) -> HaStatus | Promised:
    """One order from a program without an event loop. Raises what ``OrderClient.call`` raises."""

    async def once() -> HaStatus | Promised:
        async with OrderClient(path) as client:
            return await client.call(order, timeout_s=timeout_s)

    return asyncio.run(once())
