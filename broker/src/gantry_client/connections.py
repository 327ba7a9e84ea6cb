"""One connection per address, opened when first needed and reopened after it was lost.

No other module of this package opens a connection or handles errors of the layer below: `ConnectionPool.request`
returns a reply or raises an error of this package. All requests to one address share its connection concurrently.
"""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, final

from gantry_access import signer
from gantry_client.errors import ClientClosed, InvalidMessage, RequestFailed, RequestTimeout, Unavailable
from gantry_client.settings import ClientSettings
from gantry_remoting.client import Channel
from gantry_remoting.errors import (
    CannotConnect,
    ConnectionClosed,
    RemotingError,
    RemotingTimeout,
    RequestTooLarge,
)
from gantry_remoting.settings import ClientTlsSettings
from gantry_wire.codes import ResponseCode
from gantry_wire.command import Command

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S: Final = 2.0
"""How long closing waits until peers have received what was written to them."""

RequestHandler = Callable[[Command, str], Command | Awaitable[Command | None] | None]
"""Answers a request of a peer, at once or later, given the request and the address of the peer."""
OnOutcome = Callable[[Command | RequestFailed], None]
"""Gets the reply to a request, with any response code, or why there is none. It must not raise."""


@final
class ConnectionPool:
    """The open connections of one client. Belongs to one event loop."""

    def __init__(
        self,
        settings: ClientSettings,
        *,
        answer: RequestHandler,
        on_connected: Callable[[str], None] = lambda address: None,
    ) -> None:
        self._settings = settings
        tls = settings.tls
        self._certificates = tls.source("servers") if isinstance(tls, ClientTlsSettings) else None
        self._answer = answer
        self._on_connected = on_connected
        self._channels: dict[str, Channel] = {}
        self._connecting: dict[str, asyncio.Task[Channel]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._answer_tasks: set[asyncio.Task[None]] = set()
        """Tasks that answer requests of peers asynchronously."""
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<ConnectionPool open={sorted(self._channels)}>"

    def open_addresses(self) -> set[str]:
        """Return the addresses with an open connection."""
        return {address for address, channel in self._channels.items() if channel.is_open}

    async def request(self, address: str, command: Command, timeout_ms: int) -> Command:
        """Return the reply of `address`, with any response code.

        Raises Unavailable, RequestTimeout or ClientClosed, and InvalidMessage for a request that exceeds a frame.
        """
        channel = await self._channel(address, timeout_ms)
        try:
            return await channel.request(command, timeout_ms)
        except RequestTooLarge as error:
            raise InvalidMessage(str(error)) from error
        except RemotingError as error:
            raise self._failure(channel, error) from error

    def is_connected(self, address: str) -> bool:
        """Return whether a connection to ``address`` is open."""
        channel = self._channels.get(address)
        return channel is not None and channel.is_open and not self._is_closed

    def begin_request(self, address: str, command: Command, timeout_ms: int, on_outcome: OnOutcome) -> bool:
        """Send a request without waiting; later, ``on_outcome`` is called once.

        Return False, and send nothing, if no connection to ``address`` is open, which ``request`` opens, or if the
        request exceeds a frame, for which ``request`` has the error.
        """
        channel = self._channels.get(address)
        if channel is None or not channel.is_open or self._is_closed:
            return False
        try:
            channel.begin_request(command, timeout_ms, partial(self._pass_outcome, channel, on_outcome))
        except RequestTooLarge:
            return False
        return True

    async def send_oneway(self, address: str, command: Command, timeout_ms: int) -> None:
        """Write `command` to the connection. Waits for the connection and room in its buffer, never for an answer."""
        channel = await self._channel(address, timeout_ms)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await channel.wait_until_writable()
            channel.send_oneway(command)
        except TimeoutError as error:
            raise RequestTimeout(f"{address} did not read from its connection for {timeout_ms} ms") from error
        except ConnectionClosed as error:
            raise Unavailable(str(error)) from error
        except RequestTooLarge as error:
            raise InvalidMessage(str(error)) from error

    async def close(self) -> None:
        """Close every connection. Afterwards every request raises ClientClosed."""
        self._is_closed = True
        for unfinished in (*self._connecting.values(), *self._answer_tasks):
            unfinished.cancel()
        await asyncio.gather(*self._connecting.values(), *self._answer_tasks, return_exceptions=True)
        tasks = [*self._closing] + [asyncio.ensure_future(channel.close()) for channel in self._channels.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_TIMEOUT_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._channels.clear()

    async def _channel(self, address: str, timeout_ms: int) -> Channel:
        if self._is_closed:
            raise ClientClosed("the client is closed")
        channel = self._channels.get(address)
        if channel is not None and channel.is_open:
            return channel
        task = self._connecting.get(address)
        if task is None:
            task = asyncio.create_task(self._connect(address), name=f"gantry-connect-{address}")
            self._connecting[address] = task
            task.add_done_callback(lambda done: self._on_connect_ended(address, done))
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await asyncio.shield(task)
        except TimeoutError as error:
            raise Unavailable(f"could not connect to {address} within {timeout_ms} ms") from error
        except asyncio.CancelledError:
            if task.cancelled():
                raise ClientClosed("the client is closed") from None
            raise

    async def _connect(self, address: str) -> Channel:
        try:
            channel = await Channel.connect(
                address,
                timeout_ms=self._settings.connect_timeout_ms,
                tls=await self._tls(),
                on_request=lambda command, channel: self._handle_request(command, address, channel),
                on_close=lambda closed: self._forget(address, closed),
                sign=signer(self._settings.credentials, self._settings.signature),
            )
        except (CannotConnect, OSError, ValueError) as error:
            raise Unavailable(str(error)) from error
        self._channels[address] = channel
        self._on_connected(address)
        return channel

    def _handle_request(self, command: Command, address: str, channel: Channel) -> Command | None:
        answer = self._answer(command, address)
        if not isinstance(answer, Awaitable):
            return answer
        task = asyncio.ensure_future(self._answer_later(command, answer, channel))
        self._answer_tasks.add(task)
        task.add_done_callback(self._answer_tasks.discard)
        return None

    async def _answer_later(self, command: Command, answer: Awaitable[Command | None], channel: Channel) -> None:
        try:
            reply = await answer
        except Exception as error:
            log.exception(
                "unexpected error while handling request of peer", extra={"peer": channel.address, "code": command.code}
            )
            reply = command.reply(ResponseCode.SYSTEM_ERROR, f"unexpected error in the client: {type(error).__name__}")
        if reply is not None and not command.is_oneway:
            channel.answer(reply)

    async def _tls(self) -> ssl.SSLContext | None:
        """Return the TLS context for the next connection. Raises OSError if the files never were usable."""
        if self._certificates is not None:
            return await self._certificates.load_current()
        tls = self._settings.tls
        return tls if isinstance(tls, ssl.SSLContext) else None

    def _on_connect_ended(self, address: str, task: asyncio.Task[Channel]) -> None:
        self._connecting.pop(address, None)
        if not task.cancelled() and task.exception() is not None:
            log.info("failed to connect", extra={"peer": address, "reason": str(task.exception())})

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def _pass_outcome(self, channel: Channel, on_outcome: OnOutcome, outcome: Command | RemotingError) -> None:
        try:
            on_outcome(outcome if isinstance(outcome, Command) else self._failure(channel, outcome))
        except Exception:
            log.exception("unexpected error while handling reply of peer", extra={"peer": channel.address})

    def _failure(self, channel: Channel, error: RemotingError) -> RequestFailed:
        """Return why a request on a connection has no reply. Closes the connection if it has been silent for long."""
        if isinstance(error, RemotingTimeout):
            self._close_if_silent(channel.address, channel)
            return RequestTimeout(str(error))
        return Unavailable(str(error), is_outcome_unknown=True)

    def _close_if_silent(self, address: str, channel: Channel) -> None:
        """Close a connection on which a request timed out if it has been silent for too long."""
        silent_ms = (self._loop.time() - channel.replied_at) * 1000
        if channel.is_open and silent_ms >= self._settings.silent_connection_timeout_ms:
            log.warning("closing silent connection", extra={"peer": address, "silent_ms": int(silent_ms)})
            self._forget(address, channel)
            task = asyncio.create_task(channel.close(), name=f"gantry-close-{address}")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _forget(self, address: str, channel: Channel) -> None:
        if self._channels.get(address) is channel:
            del self._channels[address]
