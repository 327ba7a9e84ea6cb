"""Requests to a Java master by remoting, beside the replication stream: the range of its log, and its tables."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, final

from gantry_access import OwnAccount, signer
from gantry_broker.ha.classic.slave_session import MasterRange
from gantry_remoting import Channel
from gantry_wire import Command, RequestCode, fastjson
from gantry_wire.commands.timers import TimerCheckpoint
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.runtime_table import log_range

TIMEOUT_MS: Final = 30_000
"""Timeout of one request: a master with ten thousand topics takes a while."""

PAGE_ITEMS: Final = 2_000
"""Topics or groups requested at a time, from a master that supports pages."""

PAGES_MAX: Final = 10_000
"""Limit of pages: a master whose table changes with every page is asked again in the next round."""

FORBIDDEN: Final = "forbiddenTable"
"""Table that is transferred together with the groups, page by page as they are."""

Document = dict[str, Any]


class BadReply(Exception):
    """The master refuses a request, or its reply is invalid. The text names the request and the reason."""


QUEUE_OFFSET_MAX: Final = 1 << 62
"""An offset beyond any queue: RocketMQ's timer progress has only a time."""


@final
class ClassicMasterClient:
    """One connection to the main port of a Java master."""

    def __init__(self, channel: Channel) -> None:
        self._channel: Final = channel

    @classmethod
    @asynccontextmanager
    async def open(cls, address: str, account: OwnAccount | None = None) -> AsyncIterator[ClassicMasterClient]:
        """Connect to a master. Requests are signed as RocketMQ's tools sign. Raises ``CannotConnect``."""
        if account is not None:
            await account.refresh()
        channel = await Channel.connect(address, sign=signer(None if account is None else account.credentials))
        try:
            yield cls(channel)
        finally:
            await channel.close()

    async def fetch_range(self) -> MasterRange:
        """Return the range of the master's log. Like all requests, raises ``BadReply`` and ``RemotingError``."""
        _, document = await self._ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        try:
            return MasterRange(*log_range(document.get("table", {})))
        except ValueError as exc:
            raise BadReply(str(exc)) from exc

    async def fetch_document(self, code: RequestCode) -> Document:
        """Return a table that is transferred in one reply; empty if the master has none yet."""
        return (await self._ask(code))[1]

    async def fetch_timer_progress(self) -> Document:
        """Return how far the master has delivered its timer messages, as the table `timerProgress`."""
        reply = await self._request(RequestCode.GET_TIMER_CHECK_POINT, {})
        try:
            checkpoint = TimerCheckpoint.decode(reply.body)
        except RemoteProtocolError as exc:
            raise BadReply(str(exc)) from exc
        return {"read": checkpoint.queue_offset, "marks": [[0, checkpoint.last_read_ms, QUEUE_OFFSET_MAX]]}

    async def fetch_pages(self, code: RequestCode, table: str, item: str) -> Document:
        """Return a table that newer masters transfer in pages, and older ones in one reply.

        Older masters do not report the number of entries.
        """
        collected: Document = {}
        version: Any = None
        for _ in range(PAGES_MAX):
            entries: Document = collected.get(table, {})
            fields = {f"{item}Seq": str(len(entries)), f"max{item.capitalize()}Num": str(PAGE_ITEMS)}
            fields["dataVersion"] = fastjson.dumps(version).decode() if version is not None else ""
            ext, page = await self._ask(code, fields)
            rows = page.get(table)
            if not isinstance(rows, dict) or not isinstance(page.get(FORBIDDEN) or {}, dict):
                raise BadReply(f"its reply to {code.name} has no {table}")
            total = ext.get(f"total{item.capitalize()}Num")
            if total is None:
                return page
            if collected and page.get("dataVersion") != version:
                # The table has changed between two pages: start again with the first page.
                collected, version = {}, None
                continue
            version = page.get("dataVersion")
            collected = {**page, **_join_pages(collected, page, table)}
            if len(collected[table]) >= _count(total):
                return collected
            if not rows:
                # A part of a table would be taken for all of it, and its missing entries for deleted ones.
                raise BadReply(f"its reply to {code.name} ends after {len(collected[table])} of {total[:20]} entries")
        raise BadReply(f"its replies to {code.name} never end")

    async def fetch_empty_queue_ends(self, topic: str) -> dict[str, int]:
        """Return the next offsets of the topic's queues that have no messages left, by queue id."""
        _, document = await self._ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
        ends: dict[str, int] = {}
        try:
            for queue, offsets in (document.get("offsetTable") or {}).items():
                begin, end = int(offsets["minOffset"]), int(offsets["maxOffset"])
                if 0 < end <= begin:
                    ends[str(int(queue["queueId"]))] = end
        except (AttributeError, KeyError, TypeError, ValueError) as exc:
            raise BadReply(f"its reply has invalid offsets for the queues of {topic}") from exc
        return ends

    async def _request(self, code: RequestCode, fields: dict[str, str]) -> Command:
        reply = await self._channel.request(Command(code=code, ext=fields), TIMEOUT_MS)
        if reply.code != 0:
            raise BadReply(f"{code.name} failed with code {reply.code}: {(reply.remark or '')[:200]}")
        return reply

    async def _ask(self, code: RequestCode, fields: dict[str, str] | None = None) -> tuple[dict[str, str], Document]:
        reply = await self._request(code, fields or {})
        try:
            document = fastjson.loads(reply.body) if reply.body else {}
        except ValueError as exc:
            raise BadReply(f"its reply to {code.name} is not JSON: {exc}") from exc
        if not isinstance(document, dict):
            raise BadReply(f"its reply to {code.name} is not a JSON object")
        return reply.ext, document


def _join_pages(collected: Document, page: Document, table: str) -> Document:
    """Return the tables of two pages as one, with the documents that belong to their rows."""
    tables = (table, FORBIDDEN)
    return {
        name: {**collected.get(name, {}), **(page.get(name) or {})}
        for name in tables
        if name in page or name in collected
    }


def _count(total: str) -> int:
    try:
        return int(total)
    except ValueError as exc:
        raise BadReply(f"its number of entries is invalid: {total[:20]!r}") from exc
