"""What a Java master is asked by remoting, beside the stream: where its log lies, and its tables."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, final

from gantry_access import Credentials, signer
from gantry_broker.ha.classic.slave_session import MasterRange
from gantry_remoting import Channel
from gantry_wire import Command, RequestCode, fastjson
from gantry_wire.runtime_table import log_range

TIMEOUT_MS: Final = 30_000
"""For one answer, as RocketMQ's slaves have it: a master with ten thousand topics takes a while."""

PAGE_ITEMS: Final = 2_000
"""Topics or groups in one answer, where the master knows pages."""

PAGES_MAX: Final = 10_000
"""A master whose table changes with every page is asked again with the next round."""

FORBIDDEN: Final = "forbiddenTable"
"""What comes with groups, page by page as they do."""

Document = dict[str, Any]


class BadAnswer(Exception):
    """The master refuses, or its answer makes no sense. The text names which."""


@final
class Questions:
    """One connection to the master's main port."""

    def __init__(self, channel: Channel) -> None:
        self._channel: Final = channel

    @classmethod
    @asynccontextmanager
    async def open(cls, address: str, credentials: Credentials | None = None) -> AsyncIterator[Questions]:
        """Raises ``CannotConnect``. What is asked is signed as RocketMQ's tools sign."""
        channel = await Channel.connect(address, sign=signer(credentials))
        try:
            yield cls(channel)
        finally:
            await channel.close()

    async def range(self) -> MasterRange:
        """Where its log lies. Raises ``BadAnswer`` and ``RemotingError``, as do all of these."""
        _, document = await self._ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        try:
            return MasterRange(*log_range(document["table"]))
        except (KeyError, TypeError, ValueError) as exc:
            raise BadAnswer(str(exc)) from exc

    async def document(self, code: RequestCode) -> Document:
        """A table that comes in one piece; empty if there is none yet."""
        return (await self._ask(code))[1]

    async def paged(self, code: RequestCode, table: str, item: str) -> Document:
        """A table that newer masters give page by page, and older ones whole: those do not say how many there are."""
        whole: Document = {}
        version: Any = None
        for _ in range(PAGES_MAX):
            entries: Document = whole.get(table, {})
            fields = {f"{item}Seq": str(len(entries)), f"max{item.capitalize()}Num": str(PAGE_ITEMS)}
            fields["dataVersion"] = fastjson.dumps(version).decode() if version is not None else ""
            ext, page = await self._ask(code, fields)
            rows = page.get(table)
            if not isinstance(rows, dict) or not isinstance(page.get(FORBIDDEN) or {}, dict):
                raise BadAnswer(f"its answer to {code.name} has no {table}")
            total = ext.get(f"total{item.capitalize()}Num")
            if total is None:
                return page
            if whole and page.get("dataVersion") != version:
                # It has changed between two pages: start again with the first.
                whole, version = {}, None
                continue
            version = page.get("dataVersion")
            whole = {**page, **_joined(whole, page, table)}
            if len(whole[table]) >= _count(total):
                return whole
            if not rows:
                # Half a table would be taken for a whole one, and what it lacks for deleted.
                raise BadAnswer(f"its answer to {code.name} ends after {len(whole[table])} of {total[:20]} entries")
        raise BadAnswer(f"its answers to {code.name} have no end")

    async def idle_ends(self, topic: str) -> dict[str, int]:
        """The next numbers of the topic's queues that had messages and have none any more, by queue id."""
        _, document = await self._ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
        ends: dict[str, int] = {}
        try:
            for queue, offsets in (document.get("offsetTable") or {}).items():
                begin, end = int(offsets["minOffset"]), int(offsets["maxOffset"])
                if 0 < end <= begin:
                    ends[str(int(queue["queueId"]))] = end
        except (AttributeError, KeyError, TypeError, ValueError) as exc:
            raise BadAnswer(f"what it says of the queues of {topic} makes no sense") from exc
        return ends

    async def _ask(self, code: RequestCode, fields: dict[str, str] | None = None) -> tuple[dict[str, str], Document]:
        reply = await self._channel.request(Command(code=code, ext=fields or {}), TIMEOUT_MS)
        if reply.code != 0:
            raise BadAnswer(f"it answers {code.name} with {reply.code}: {(reply.remark or '')[:200]}")
        try:
            document = fastjson.loads(reply.body) if reply.body else {}
        except ValueError as exc:
            raise BadAnswer(f"its answer to {code.name} is not JSON: {exc}") from exc
        if not isinstance(document, dict):
            raise BadAnswer(f"its answer to {code.name} is no object")
        return reply.ext, document


def _joined(whole: Document, page: Document, table: str) -> Document:
    """Two pages' tables as one, and what belongs to their rows."""
    tables = (table, FORBIDDEN)
    return {name: {**whole.get(name, {}), **(page.get(name) or {})} for name in tables if name in page or name in whole}


def _count(total: str) -> int:
    try:
        return int(total)
    except ValueError as exc:
        raise BadAnswer(f"it says that there are {total[:20]!r} entries") from exc
