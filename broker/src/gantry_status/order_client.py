"""A client for orders to a broker over its control socket: one connection, one order at a time.

A broker that does not answer must not block the caller, so every call has a timeout. Every error names the path, except
a refusal, which has the broker's reason. After a call that timed out the connection is closed: its answer may still
arrive, and would be taken for that of the next call. A cached connection that turns out to be closed is replaced once,
which is safe because orders are idempotent.
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
    BadLine,
    BrokerUnreachable,
    Drain,
    Failed,
    HaStatus,
    OrderFailed,
    OrderRefused,
    OrderUnanswered,
    Promised,
    PromiseRequest,
    Refused,
    StatusOrder,
    StatusRequest,
    decode_answer,
    encode,
)
from gantry_status.socket_path import socket_address

CONNECT_TIMEOUT_S: Final = 5.0
"""The timeout of a connection to the control socket."""
ANSWER_TIMEOUT_S: Final = 30.0
"""The timeout of an answer. A promise waits for a disk, a promotion until everything in the log is dispatched."""

Check = Callable[[HaStatus], None]
"""A check whether an order may go to the broker with this status. It raises if not."""


@final
class OrderClient:
    """A client of one broker, owned by one event loop.

    It connects on demand. Tasks may share it; their orders are sent one at a time.
    """

    def __init__(
        self, path: str, *, answer_timeout_s: float = ANSWER_TIMEOUT_S, is_one_connection: bool = False
    ) -> None:
        """Create a client without connecting: the broker need not run yet.

        With ``is_one_connection`` a closed connection is never replaced, so that all orders go to the same process.
        """
        self.path: Final = path
        self._is_one_connection: Final = is_one_connection
        self._was_connected = False
        self._answer_timeout_s: Final = answer_timeout_s
        self._lock: Final = asyncio.Lock()
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
    async def call(self, order: PromiseRequest, *, timeout_s: float | None = None) -> Promised: ...

    @overload
    async def call(self, order: StatusOrder, *, timeout_s: float | None = None) -> HaStatus: ...

    async def call(self, order: AnyOrder, *, timeout_s: float | None = None) -> HaStatus | Promised:
        """Send an order and return its answer.

        Raises a subclass of ``OrderError``; ``OrderRefused`` means that the order was not executed.
        """
        wait_s = self._timeout_s(order) if timeout_s is None else timeout_s
        async with self._lock:
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
        """Send an order to a process whose status, queried on the same connection just before, passes ``check``.

        Raises the errors of ``check`` and of ``call``.
        """
        if check is not None:
            assert self._is_one_connection, "the order must go to the process whose status was checked"
            check(await self.call(StatusRequest(), timeout_s=timeout_s))
        return await self.call(order, timeout_s=timeout_s)

    async def close(self) -> None:
        """Close the connection. Another call opens a new one, except with ``is_one_connection``."""
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].transport.abort()
            with suppress(OSError):
                await streams[1].wait_closed()

    def _timeout_s(self, order: AnyOrder) -> float:
        """Return the timeout for an order, which includes the time that the order itself allows."""
        return self._answer_timeout_s + (order.timeout_ms / 1000 if isinstance(order, Drain) else 0.0)

    async def _exchange(self, order: AnyOrder) -> AnyAnswer:
        """Return the answer to ``order``, checked to have the matching type."""
        if self._streams is not None and (self._streams[0].at_eof() or self._streams[1].is_closing()):
            await self.close()
        was_kept = self._streams is not None
        line = await self._send_and_read(order)
        if not line and was_kept and not self._is_one_connection:
            await self.close()
            try:
                line = await self._send_and_read(order)
            except BrokerUnreachable as error:
                raise OrderUnanswered(f"the broker closed the connection, and the retry failed: {error}") from error
        if not line:
            raise OrderUnanswered(f"{self.path}: the broker closed the connection without an answer")
        try:
            answer = decode_answer(line)
        except BadLine as error:
            raise OrderUnanswered(f"{self.path}: {error}") from error
        is_promise = isinstance(order, PromiseRequest)
        if isinstance(answer, HaStatus | Promised) and isinstance(answer, Promised) != is_promise:
            raise OrderUnanswered(f"{self.path}: the answer belongs to another order")
        return answer

    async def _send_and_read(self, order: AnyOrder) -> bytes:
        """Return the line of the answer, or empty bytes if the connection ends first."""
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
            raise BrokerUnreachable(f"{self.path}: the process that answered before has closed the connection")
        self._was_connected = True
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                with socket_address(self.path) as address:
                    self._streams = await asyncio.open_unix_connection(address, limit=LINE_BYTES_MAX)
        except FileNotFoundError as error:
            raise BrokerUnreachable(f"there is no control socket at {self.path}") from error
        except ConnectionRefusedError as error:
            raise BrokerUnreachable(
                f"no broker listens at {self.path}: a stopped broker left the socket behind"
            ) from error
        except TimeoutError as error:
            raise BrokerUnreachable(f"{self.path}: connecting timed out after {CONNECT_TIMEOUT_S:g} s") from error
        except OSError as error:
            raise BrokerUnreachable(f"cannot connect to {self.path}: {error.strerror or error}") from error
        assert self._streams is not None, "connected"
        return self._streams


def order_once(path: str, order: AnyOrder, *, timeout_s: float | None = None) -> HaStatus | Promised:
    """Send one order from a program without an event loop. Raises the errors of ``OrderClient.call``."""

    async def once() -> HaStatus | Promised:
        async with OrderClient(path) as client:
            return await client.call(order, timeout_s=timeout_s)

    return asyncio.run(once())
