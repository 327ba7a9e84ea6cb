"""The slave's end of RocketMQ's replication stream.

    request the range of the log --> connect --> prepare the store --> offset --> bytes, reports, bytes, ...

The master is a Java broker that knows only this slave's address and offset. Its tables are fetched beside the stream,
by ``ClassicTableFetcher``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, NamedTuple, final

from gantry_access import OwnAccount
from gantry_broker.ha.classic.chunks import REPORT_INTERVAL_S
from gantry_broker.ha.classic.master_client import BadReply, ClassicMasterClient
from gantry_broker.ha.classic.slave_session import ClassicSlaveSession, MasterRange, StreamStart, plan_stream_start
from gantry_broker.ha.classic.table_fetcher import ClassicTableFetcher
from gantry_broker.ha.follower_runner import Address, FollowerRunner, FollowerStream, RunExclusively
from gantry_broker.ha.frames import StreamBroken, Table, Welcome
from gantry_broker.ha.history import CannotFollow
from gantry_broker.ha.store_log import SlaveStore
from gantry_remoting import RemotingError

log = logging.getLogger(__name__)

FINISH_S: Final = 5.0
"""How long a promotion waits for the last tables of a master that may have stopped this very moment."""


class ClassicMaster(NamedTuple):
    """The addresses of a Java master."""

    address: Address
    """Address of its replication port."""

    broker_address: str
    """Address of its main port, which serves requests."""

    account: OwnAccount | None = None
    """An administrator's account, for a master with access control."""


@final
class ClassicSlaveStream(FollowerStream):
    """One connection to a Java master."""

    def __init__(
        self,
        store: SlaveStore,
        start: StreamStart,
        file_bytes: int,
        prepare: Callable[[Welcome], Awaitable[None]],
        on_copied: Callable[[], None],
    ) -> None:
        super().__init__(on_copied)
        self._store: Final = store
        self._start: Final = start
        self._file_bytes: Final = file_bytes
        self._prepare: Final = prepare
        self._session: ClassicSlaveSession | None = None
        self._wrote_at = self._loop.time()

    @property
    def is_streaming(self) -> bool:
        return self._session is not None and self._session.is_streaming

    async def begin(self) -> None:
        start = self._start
        await self._prepare(
            Welcome(
                epoch=start.epochs[-1].epoch, epochs=start.epochs, begin=start.end, start=start.end,
                is_restart=start.is_restart,
            )
        )  # fmt: skip
        self.raise_if_ended()
        self._session = ClassicSlaveSession(self._store, start, self._file_bytes)
        self.write(self._session.begin())
        if self._session.is_streaming:
            self._on_copied()
        else:
            log.info("comparing the log with the master's", extra={"start": start.request, "end": start.end})

    def receive(self, data: bytes) -> None:
        if self._session is None:
            raise StreamBroken("the master sent data before this slave requested any")
        self.write(self._session.receive(data))

    def acknowledge(self) -> None:
        if self._session is not None and self._session.is_streaming:
            self.write(self._session.ack())
            self._on_copied()

    def keep_alive(self) -> None:
        if self._session is not None and self._loop.time() - self._wrote_at >= REPORT_INTERVAL_S:
            self.write(self._session.report())

    def write(self, data: bytes) -> None:
        if data:
            self._wrote_at = self._loop.time()
            super().write(data)


@final
class ClassicFollower(FollowerRunner[ClassicSlaveStream]):
    """Follows a Java master, and fetches its tables."""

    def __init__(
        self,
        store: SlaveStore,
        master: ClassicMaster,
        *,
        file_bytes: int,
        is_flushed_wanted: bool = False,
        on_table: Callable[[Table], None] = lambda table: None,
        on_copied: Callable[[], None] = lambda: None,
        run_exclusively: RunExclusively = asyncio.to_thread,
    ) -> None:
        """Create a follower. ``on_copied`` is called after each read and ack: the confirmed position may have moved.

        Consumers may read what is received, or only what is flushed if ``is_flushed_wanted``: the master reports no
        confirmed position.
        """
        super().__init__(store, master.address, run_exclusively=run_exclusively)
        self.tables: Final = ClassicTableFetcher(
            master.broker_address,
            on_table,
            self._check_range,
            lambda: self.is_streaming,
            account=master.account,
        )
        self._master: Final = master
        self._file_bytes: Final = file_bytes
        self._is_flushed_wanted: Final = is_flushed_wanted
        self._on_copied: Final = on_copied
        self._wrote_before = -1

    async def _open(self) -> ClassicSlaveStream:
        try:
            async with ClassicMasterClient.open(self._master.broker_address, self._master.account) as client:
                master = await client.fetch_range()
        except (RemotingError, BadReply) as exc:
            raise CannotFollow(f"{self._master.broker_address}: {exc}") from exc
        start = plan_stream_start(self._store.history, master, self._file_bytes)
        return ClassicSlaveStream(self._store, start, self._file_bytes, self.prepare_store, self._on_copied)

    @property
    def confirmed(self) -> int:
        """Position up to which consumers may read; -1 until this log is known to be the master's."""
        if not self.is_streaming:
            return -1
        return min(self._store.received, self._store.flushed) if self._is_flushed_wanted else self._store.received

    async def finish(self) -> None:
        """Fetch the master's tables once again, if it is connected, before this broker becomes the master.

        They are fetched only every few seconds, and consumers commit all the time.
        """
        if self.is_streaming:
            with suppress(TimeoutError):
                async with asyncio.timeout(FINISH_S):
                    await self.tables.fetch(is_last=True)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.tables.run())
            tasks.create_task(super().run())

    def _check_range(self, master: MasterRange) -> None:
        """End the stream if the master's log no longer has the next byte: it would send only heartbeats."""
        wrote = self._store.history.end
        before, self._wrote_before = self._wrote_before, wrote
        if self._stream is not None and wrote < master.begin and wrote == before:
            text = f"the master's log at offset {wrote} has expired: it begins at {master.begin}"
            self._stream.end(StreamBroken(text))
