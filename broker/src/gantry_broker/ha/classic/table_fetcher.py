"""Fetches a Java master's tables every few seconds: a slave needs them when it is promoted.

RocketMQ's master sends no tables with its stream; its slaves request them. So does this module, every few seconds. It
passes on changed tables in the frames that a Gantry master would send: under the names of RocketMQ's own files, as
JSON, stamped with the end of the master's log. A table that the master refuses does not block the others; a timeout or
a lost connection ends the round. The last version of a table stays in use.

When a stream has begun, and before a promotion, the master is also asked for the start offsets of empty queues, of
which the log has no record. That takes a request for each topic.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, final

from gantry_access import OwnAccount
from gantry_broker.ha.classic.master_client import BadReply, ClassicMasterClient, Document
from gantry_broker.ha.classic.slave_session import MasterRange
from gantry_broker.ha.frames import Table
from gantry_remoting import RemotingError
from gantry_wire import RequestCode, fastjson

log = logging.getLogger(__name__)

INTERVAL_S: Final = 10.0
"""Seconds between two rounds: consumers commit all the time, and a promotion fetches the tables once again."""

CHECK_INTERVAL_S: Final = 0.2
"""Seconds between two checks whether tables are wanted."""

NAMES: Final = ("topics", "subscriptionGroup", "consumerOffset", "delayOffset")
"""Names of the tables, in the order in which a slave needs them."""

TOPICS_AT_ONCE: Final = 64
"""Number of topics whose queues are requested at the same time."""

_KEPT: Final = ("dataVersion", "topicConfigTable", "offsetTable", "subscriptionGroupTable", "forbiddenTable")
"""Keys of a reply that are passed on, because RocketMQ's files have them."""


@final
class ClassicTableFetcher:
    """Fetches the tables of one Java master. Owned by the loop."""

    def __init__(
        self,
        broker_address: str,
        on_table: Callable[[Table], None],
        on_range: Callable[[MasterRange], None] = lambda master: None,
        is_wanted: Callable[[], bool] = lambda: True,
        *,
        account: OwnAccount | None = None,
    ) -> None:
        """Create a fetcher. ``on_range`` is called once in each round with the range of the master's log.

        While ``is_wanted`` returns False no tables are passed on: those of a master with another log would delete
        topics of this broker.
        """
        self.problem: str | None = None
        """Why the last round failed; None if it succeeded."""

        self.master_end = -1
        """End of the master's log, as last reported; -1 before."""

        self._address: Final = broker_address
        self._on_table: Final = on_table
        self._on_range: Final = on_range
        self._is_wanted: Final = is_wanted
        self._account: Final = account
        self._known: dict[str, bytes] = {}
        self._are_modes_checked = False
        """Whether groups that consume by pop were found and logged, or the master does not know that request."""

        self._has_ends = False
        """Whether the start offsets of empty queues were fetched during this stream."""

    async def run(self) -> None:
        """Fetch the tables every few seconds, until cancelled."""
        while True:
            if self._is_wanted():
                await self.fetch()
                await asyncio.sleep(INTERVAL_S)
            else:
                self._has_ends = False
                await asyncio.sleep(CHECK_INTERVAL_S)

    async def fetch(self, *, is_last: bool = False) -> None:
        """Do one round; failures are recorded in ``problem``.

        The first round of a stream, and the last one, also fetch the start offsets of empty queues.
        """
        problems: list[str] = []
        topics: list[str] = []
        try:
            async with ClassicMasterClient.open(self._address, self._account) as client:
                for name in NAMES:
                    try:
                        document = await self._ask(client, name)
                        self.master_end = (await client.fetch_range()).end
                        self._pass_on(name, document)
                        if name == "topics":
                            topics = list(document.get("topicConfigTable") or ())
                    except BadReply as exc:
                        problems.append(str(exc))
                await self._fetch_timer_progress(client)
                await self._warn_of_pop_groups(client)
                self._on_range(await client.fetch_range())
                if topics and (is_last or not self._has_ends):
                    await self._fetch_queue_ends(client, topics)
        except (RemotingError, BadReply) as exc:
            problems.append(str(exc))
        problem = "; ".join(problems) or None
        if problem is not None and problem != self.problem:
            extra = {"master": self._address, "reason": problem}
            log.warning("failed to fetch the master's tables; retrying", extra=extra)
        self.problem = problem

    def _ask(self, client: ClassicMasterClient, name: str) -> Awaitable[Document]:
        match name:
            case "topics":
                return client.fetch_pages(RequestCode.GET_ALL_TOPIC_CONFIG, "topicConfigTable", "topic")
            case "subscriptionGroup":
                code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
                return client.fetch_pages(code, "subscriptionGroupTable", "group")
            case "consumerOffset":
                return client.fetch_document(RequestCode.GET_ALL_CONSUMER_OFFSET)
            case _:
                return client.fetch_document(RequestCode.GET_ALL_DELAY_OFFSET)

    def _pass_on(self, name: str, document: Document) -> None:
        """Pass a table on if it has changed, stamped with the end of the master's log."""
        kept = {key: document[key] for key in _KEPT if document.get(key) is not None}
        if set(kept) <= {"dataVersion"} or not self._is_wanted():
            return
        data = fastjson.dumps(kept)
        if self._known.get(name) != data:
            self._known[name] = data
            self._on_table(Table(self.master_end, name, data))

    async def _fetch_timer_progress(self, client: ClassicMasterClient) -> None:
        """Pass on how far the master has delivered timer messages; a master of RocketMQ 4 has none."""
        try:
            data = fastjson.dumps(await client.fetch_timer_progress())
        except BadReply:
            return
        self.master_end = (await client.fetch_range()).end
        if self._is_wanted() and self._known.get("timerProgress") != data:
            self._known["timerProgress"] = data
            self._on_table(Table(self.master_end, "timerProgress", data))

    async def _fetch_queue_ends(self, client: ClassicMasterClient, topics: list[str]) -> None:
        """Fetch the start offsets of empty queues. Topics that the master refuses are left out."""
        ends: dict[str, dict[str, int]] = {}
        for start in range(0, len(topics), TOPICS_AT_ONCE):
            some = topics[start : start + TOPICS_AT_ONCE]
            answers = await asyncio.gather(*map(client.fetch_empty_queue_ends, some), return_exceptions=True)
            for topic, answer in zip(some, answers, strict=True):
                if isinstance(answer, BadReply):
                    log.info("failed to fetch queue offsets of a topic", extra={"topic": topic, "reason": str(answer)})
                elif isinstance(answer, BaseException):
                    raise answer
                elif answer:
                    ends[topic] = answer
        self.master_end = (await client.fetch_range()).end
        if self._is_wanted():
            self._on_table(Table(self.master_end, "queueEnds", fastjson.dumps({"endTable": ends})))
            self._has_ends = True

    async def _warn_of_pop_groups(self, client: ClassicMasterClient) -> None:
        """Warn of groups that consume by pop before a migration is over: their checkpoints are timer messages."""
        if self._are_modes_checked:
            return
        try:
            document = await client.fetch_document(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        except BadReply:
            # A master of RocketMQ 4 does not know this request.
            self._are_modes_checked = True
            return
        topics = document.get("messageRequestModeMap")
        rows = topics.values() if isinstance(topics, dict) else ()
        popping = sorted(
            group
            for groups in rows
            if isinstance(groups, dict)
            for group, entry in groups.items()
            if isinstance(entry, dict) and entry.get("mode") == "POP"
        )
        if popping:
            self._are_modes_checked = True
            log.warning(
                "master has groups that consume by pop; their open checkpoints are not copied",
                extra={"groups": popping},
            )
