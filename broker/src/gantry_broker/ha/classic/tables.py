"""A Java master's tables, fetched every few seconds: a slave needs them when it is promoted.

RocketMQ's master sends no tables with its stream, its slaves ask. So do we, every few seconds, and hand on what has
changed, in the frames in which a master of ours would send it: under the names of RocketMQ's own files, as JSON, and
stamped with the end of the log. One table that cannot be had keeps no other away; what
was had before stays.

When a stream has begun, and before a promotion, it is asked, too, where queues go on that have nothing left: of those
the log has no record. That is a question for each topic.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, final

from gantry_access import Credentials
from gantry_broker.ha.classic.questions import BadAnswer, Document, Questions
from gantry_broker.ha.classic.slave_session import MasterRange
from gantry_broker.ha.frames import Table
from gantry_remoting import RemotingError
from gantry_wire import RequestCode, fastjson

log = logging.getLogger(__name__)

INTERVAL_S: Final = 10.0
LOOK_S: Final = 0.2
"""How often it is checked whether tables are wanted."""

NAMES: Final = ("topics", "subscriptionGroup", "consumerOffset", "delayOffset")
"""In the order in which a slave needs them."""

TOPICS_AT_ONCE: Final = 64
"""Questions about topics that are under way together."""

_KEPT: Final = ("dataVersion", "topicConfigTable", "offsetTable", "subscriptionGroupTable", "forbiddenTable")
"""Of what the answers say, what the files say, too."""


@final
class ClassicTables:
    """Owned by the loop."""

    def __init__(
        self,
        broker_address: str,
        on_table: Callable[[Table], None],
        on_range: Callable[[MasterRange], None] = lambda master: None,
        is_wanted: Callable[[], bool] = lambda: True,
        *,
        credentials: Credentials | None = None,
    ) -> None:
        """``on_range`` is called once in a round with the range of the master's log.

        While they are not ``is_wanted`` tables are not taken: of a master whose log is another one they would delete
        what is here.
        """
        self.trouble: str | None = None
        """What of the last round went wrong."""

        self.master_end = -1
        """Where the master's log ends, as far as it was asked; -1 before."""

        self._address: Final = broker_address
        self._on_table: Final = on_table
        self._on_range: Final = on_range
        self._is_wanted: Final = is_wanted
        self._credentials: Final = credentials
        self._known: dict[str, bytes] = {}
        self._is_mode_said = False
        self._has_ends = False
        """Whether the start offsets of empty queues were fetched during this stream."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if self._is_wanted():
                await self.fetch()
                await asyncio.sleep(INTERVAL_S)
            else:
                self._has_ends = False
                await asyncio.sleep(LOOK_S)

    async def fetch(self, *, is_last: bool = False) -> None:
        """One round. What goes wrong is ``trouble``. The last one asks for everything again."""
        troubles: list[str] = []
        topics: list[str] = []
        try:
            async with Questions.open(self._address, self._credentials) as questions:
                for name in NAMES:
                    try:
                        document = await self._ask(questions, name)
                        self.master_end = (await questions.range()).end
                        self._take(name, document)
                        if name == "topics":
                            topics = list(document.get("topicConfigTable") or ())
                    except BadAnswer as exc:
                        troubles.append(str(exc))
                await self._look_at_modes(questions)
                self._on_range(await questions.range())
                if topics and (is_last or not self._has_ends):
                    await self._take_ends(questions, topics)
        except (RemotingError, BadAnswer) as exc:
            troubles.append(str(exc))
        trouble = "; ".join(troubles) or None
        if trouble is not None and trouble != self.trouble:
            log.warning("the master's tables are not known", extra={"master": self._address, "reason": trouble})
        self.trouble = trouble

    def _ask(self, questions: Questions, name: str) -> Awaitable[Document]:
        match name:
            case "topics":
                return questions.paged(RequestCode.GET_ALL_TOPIC_CONFIG, "topicConfigTable", "topic")
            case "subscriptionGroup":
                code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
                return questions.paged(code, "subscriptionGroupTable", "group")
            case "consumerOffset":
                return questions.document(RequestCode.GET_ALL_CONSUMER_OFFSET)
            case _:
                return questions.document(RequestCode.GET_ALL_DELAY_OFFSET)

    def _take(self, name: str, document: Document) -> None:
        """Hand it on, if it has changed: it is what held when the log ended where it does now, or before."""
        kept = {key: document[key] for key in _KEPT if document.get(key) is not None}
        if set(kept) <= {"dataVersion"} or not self._is_wanted():
            return
        data = fastjson.dumps(kept)
        if self._known.get(name) != data:
            self._known[name] = data
            self._on_table(Table(self.master_end, name, data))

    async def _take_ends(self, questions: Questions, topics: list[str]) -> None:
        """Where empty queues go on. A topic that the master does not answer for, as one just deleted, is left out."""
        ends: dict[str, dict[str, int]] = {}
        for start in range(0, len(topics), TOPICS_AT_ONCE):
            some = topics[start : start + TOPICS_AT_ONCE]
            answers = await asyncio.gather(*map(questions.idle_ends, some), return_exceptions=True)
            for topic, answer in zip(some, answers, strict=True):
                if isinstance(answer, BadAnswer):
                    log.info("a topic's queues are not known", extra={"topic": topic, "reason": str(answer)})
                elif isinstance(answer, BaseException):
                    raise answer
                elif answer:
                    ends[topic] = answer
        self.master_end = (await questions.range()).end
        if self._is_wanted():
            self._on_table(Table(self.master_end, "queueEnds", fastjson.dumps({"endTable": ends})))
            self._has_ends = True

    async def _look_at_modes(self, questions: Questions) -> None:
        """Warn of groups that consume by pop, which are not served here, before a migration is over."""
        if self._is_mode_said:
            return
        try:
            document = await questions.document(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        except BadAnswer:
            # RocketMQ 4 does not know them.
            self._is_mode_said = True
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
            self._is_mode_said = True
            log.warning("groups of the master consume by pop, which is not supported", extra={"groups": popping})
