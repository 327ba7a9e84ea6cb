"""One connection per address, made when first needed and made again after it was lost.

Nobody else in this package opens a connection or sees an error of the layer below: `ConnectionPool.request` returns a
reply or raises a leaf of our own tree. All requests to one address share its connection and wait side by side.
"""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import Final, final

from gantry_access import signer
from gantry_client.errors import ClientClosed, RequestTimeout, Unavailable
from gantry_client.settings import ClientSettings
from gantry_remoting.client import Channel
from gantry_remoting.errors import CannotConnect, ConnectionClosed, RemotingTimeout
from gantry_remoting.settings import ClientTlsSettings
from gantry_wire.codes import ResponseCode
from gantry_wire.command import Command

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S: Final = 2.0
"""How long closing waits for a peer to take what was still written to it."""

Answer = Callable[[Command, str], Command | Awaitable[Command | None] | None]
"""What we say to a peer's request, at once or later: takes the request and the peer's address."""


@final
class ConnectionPool:
    """The open connections of one client. Belongs to one event loop."""

    def __init__(
        self, settings: ClientSettings, *, answer: Answer, connected: Callable[[str], None] = lambda address: None
    ) -> None:
        self._settings = settings
        tls = settings.tls
        self._certificates = tls.source("servers") if isinstance(tls, ClientTlsSettings) else None
        self._answer = answer
        self._connected = connected
        self._channels: dict[str, Channel] = {}
        self._connecting: dict[str, asyncio.Task[Channel]] = {}
        self._heard_at: dict[Channel, float] = {}
        """When each connection last brought an answer."""
        self._closing: set[asyncio.Task[None]] = set()
        self._answering: set[asyncio.Task[None]] = set()
        """Answers to peers that take a while."""
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<ConnectionPool open={sorted(self._channels)}>"

    def open_addresses(self) -> set[str]:
        """Where connections are open now."""
        return {address for address, channel in self._channels.items() if channel.is_open}

    async def request(self, address: str, command: Command, timeout_ms: int) -> Command:
        """The reply of `address`, whatever its code. Raises Unavailable or RequestTimeout."""
        channel = await self._channel(address, timeout_ms)
        try:
            reply = await channel.request(command, timeout_ms)
        except RemotingTimeout as error:
            self._doubt(address, channel)
            raise RequestTimeout(str(error)) from error
        except ConnectionClosed as error:
            raise Unavailable(str(error), is_outcome_unknown=True) from error
        self._heard_at[channel] = self._loop.time()
        return reply

    async def send_oneway(self, address: str, command: Command, timeout_ms: int) -> None:
        """Hand `command` to the connection; wait for a connection and for room in it, never for the peer's answer."""
        channel = await self._channel(address, timeout_ms)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await channel.writable()
            channel.send_oneway(command)
        except TimeoutError as error:
            raise RequestTimeout(f"{address} did not take what was written for {timeout_ms} ms") from error
        except ConnectionClosed as error:
            raise Unavailable(str(error)) from error

    async def close(self) -> None:
        """Close every connection. Afterwards every request raises ClientClosed."""
        self._is_closed = True
        for unfinished in (*self._connecting.values(), *self._answering):
            unfinished.cancel()
        await asyncio.gather(*self._connecting.values(), *self._answering, return_exceptions=True)
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
            task.add_done_callback(lambda done: self._connect_ended(address, done))
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await asyncio.shield(task)
        except TimeoutError as error:
            raise Unavailable(f"no connection to {address} in {timeout_ms} ms") from error
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
                on_request=lambda command, channel: self._answered(command, address, channel),
                on_close=lambda closed: self._forget(address, closed),
                sign=signer(self._settings.credentials, self._settings.signature),
            )
        except (CannotConnect, OSError, ValueError) as error:
            raise Unavailable(str(error)) from error
        self._channels[address] = channel
        self._heard_at[channel] = self._loop.time()
        self._connected(address)
        return channel

    def _answered(self, command: Command, address: str, channel: Channel) -> Command | None:
        answer = self._answer(command, address)
        if not isinstance(answer, Awaitable):
            return answer
        task = asyncio.ensure_future(self._answer_later(command, answer, channel))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)
        return None

    async def _answer_later(self, command: Command, answer: Awaitable[Command | None], channel: Channel) -> None:
        try:
            reply = await answer
        except Exception as error:
            log.exception("a peer's request failed", extra={"peer": channel.address, "code": command.code})
            reply = command.reply(ResponseCode.SYSTEM_ERROR, f"the client failed over it: {type(error).__name__}")
        if reply is not None and not command.is_oneway:
            channel.answer(reply)

    async def _tls(self) -> ssl.SSLContext | None:
        """For the next connection. Raises OSError for files that cannot be used and were never good."""
        if self._certificates is not None:
            return await self._certificates.fresh()
        tls = self._settings.tls
        return tls if isinstance(tls, ssl.SSLContext) else None

    def _connect_ended(self, address: str, task: asyncio.Task[Channel]) -> None:
        self._connecting.pop(address, None)
        if not task.cancelled() and task.exception() is not None:
            log.info("cannot connect", extra={"peer": address, "reason": str(task.exception())})

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def _doubt(self, address: str, channel: Channel) -> None:
        """A request timed out; give the connection up if nothing has come over it for long."""
        silent_ms = (self._loop.time() - self._heard_at.get(channel, 0.0)) * 1000
        if channel.is_open and silent_ms >= self._settings.silent_connection_timeout_ms:
            log.warning("a connection is silent and given up", extra={"peer": address, "silent_ms": int(silent_ms)})
            self._forget(address, channel)
            task = asyncio.create_task(channel.close(), name=f"gantry-close-{address}")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _forget(self, address: str, channel: Channel) -> None:
        self._heard_at.pop(channel, None)
        if self._channels.get(address) is channel:
            del self._channels[address]
