"""Delayed messages: stored under SCHEDULE_TOPIC_XXXX by level, put into their own topic when they are due.

Every level is a queue in which due times only grow, so only its first undelivered message needs looking at. How far a
level is delivered is kept in delayOffset.json; after a crash some messages may be delivered twice, none is lost: the
offset is written after the messages it covers, and covers only those that are on the disk by then.
"""

import asyncio
import logging
from collections import deque
from typing import Final, final

import msgspec

from gantry_broker.errors import BrokerError
from gantry_broker.server.core import BrokerCore
from gantry_broker.server.handlers.send import index_keys
from gantry_broker.server.offsets import DelayOffsetDocument
from gantry_broker.store.draft import Draft
from gantry_wire import names
from gantry_wire import properties as keys
from gantry_wire.commands.admin import DataVersion
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.hashing import tags_code
from gantry_wire.message import StoredMessage, decode_record

log = logging.getLogger(__name__)

TICK_S: Final = 0.1
SLICE_MESSAGES_MAX: Final = 64
SLICE_BYTES_MAX: Final = 1024 * 1024
FULL_RETRY_S: Final = 1.0


@final
class DelayService:
    """Delivers what is due. Owned by the event loop; `run` is its task."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        self._offsets: dict[int, int] = {}
        self._flushed_offsets: dict[int, int] = {}
        self._unflushed: deque[tuple[int, int, int]] = deque()
        """(end in the log, level, offset): what is delivered before the offset ends there."""
        self._version = DataVersion(timestamp=core.clock.wall_ms())
        self.rounds = 0
        """How often every level was looked at."""

    def __repr__(self) -> str:
        return f"<DelayService offsets={self._offsets}>"

    def load(self, document: DelayOffsetDocument) -> None:
        self._unflushed.clear()
        self._offsets = dict(document.offset_table)
        self._flushed_offsets = dict(document.offset_table)

    def document(self) -> DelayOffsetDocument:
        """As far as a power loss cannot take back what was delivered."""
        offsets = self.settled()
        if self._unflushed:
            self._core.persistence.mark("delayOffset", now=False)
        self._version = msgspec.structs.replace(
            self._version, counter=self._version.counter + 1, timestamp=self._core.clock.wall_ms()
        )
        return DelayOffsetDocument(offset_table=offsets, data_version=self._version)

    def settled(self) -> dict[int, int]:
        """Up to where each level is delivered, as far as a power loss cannot take it back."""
        flushed = self._core.store.flushed
        while self._unflushed and self._unflushed[0][0] <= flushed:
            _, level, offset = self._unflushed.popleft()
            self._flushed_offsets[level] = offset
        return dict(self._flushed_offsets)

    def delivered(self) -> DelayOffsetDocument:
        """As far as it is delivered now."""
        return DelayOffsetDocument(offset_table=dict(self._offsets), data_version=self._version)

    def progress(self) -> dict[int, tuple[int, int]]:
        """For every level used so far: (delivered up to, end of its queue)."""
        levels = range(1, len(self._core.settings.store.delay_levels_ms) + 1)
        found: dict[int, tuple[int, int]] = {}
        for level in levels:
            queue = self._core.store.find_queue(names.SCHEDULE_TOPIC, level - 1)
            if queue is not None:
                found[level] = (self._offsets.get(level, 0), queue.end)
        return found

    async def run(self) -> None:
        """Deliver until cancelled, in slices short enough that nobody else waits for them."""
        while True:
            pause_s = TICK_S
            if self._core.gate.sends is not None:  # a master delivers, and nobody else
                await asyncio.sleep(pause_s)
                continue
            for level in range(1, len(self._core.settings.store.delay_levels_ms) + 1):
                try:
                    is_more = True
                    while is_more and self._core.gate.sends is None:
                        is_more = self._deliver_slice(level)
                        await asyncio.sleep(0)
                except BrokerError as error:
                    log.warning("delayed messages wait for the store", extra={"level": level, "reason": str(error)})
                    pause_s = FULL_RETRY_S
            self.rounds += 1
            await asyncio.sleep(pause_s)

    def _deliver_slice(self, level: int) -> bool:
        """Deliver what is due of one level, at most a slice. True when there is more."""
        store = self._core.store
        queue = store.find_queue(names.SCHEDULE_TOPIC, level - 1)
        if queue is None:
            return False
        offset = max(self._offsets.get(level, 0), queue.min_offset)
        if offset >= queue.readable_end:
            return False
        result = store.read(
            names.SCHEDULE_TOPIC,
            level - 1,
            offset,
            count_max=SLICE_MESSAGES_MAX,
            bytes_max=SLICE_BYTES_MAX,
            accept=None,
        )
        if not result.body:
            if result.next_offset > offset:
                self._advance(level, result.next_offset)
            return False
        now_ms = self._core.clock.wall_ms()
        delay_ms = self._core.settings.store.delay_levels_ms[level - 1]
        messages = self._decode(level, result.body)
        if not messages:
            self._advance(level, offset + 1)
            return True
        due = [message for message in messages if message.store_timestamp_ms + delay_ms <= now_ms]
        if due:
            drafts = [draft for message in due if (draft := self._draft(message)) is not None]
            if drafts:
                store.append(drafts)
                self._core.stats.put(len(drafts), store)
            self._advance(level, due[-1].queue_offset + 1)
        return len(due) == len(messages) and self._offsets.get(level, 0) < queue.readable_end

    def _decode(self, level: int, body: bytes) -> list[StoredMessage]:
        """The good messages at the start of `body`; none when the first is damaged, which is logged and skipped."""
        messages: list[StoredMessage] = []
        position = 0
        try:
            while position < len(body):
                messages.append(decode_record(body, position))
                position += messages[-1].size
        except RemoteProtocolError as error:
            log.error("a delayed message is damaged", extra={"level": level, "reason": str(error)})
        return messages

    def _advance(self, level: int, offset: int) -> None:
        self._offsets[level] = offset
        self._unflushed.append((self._core.store.wrote, level, offset))
        self._core.persistence.mark("delayOffset", now=False)

    def _draft(self, message: StoredMessage) -> Draft | None:
        """The message as its own topic gets it; None when it does not say where it belongs."""
        properties = dict(message.properties)
        topic = properties.get(keys.REAL_TOPIC, "")
        queue_text = properties.get(keys.REAL_QUEUE_ID, "")
        if names.topic_fault(topic) is not None or not queue_text.isdigit():
            log.error("a delayed message without a real topic is skipped", extra={"offset": message.physical_offset})
            return None
        properties.pop(keys.RECORD_CRC, None)
        return Draft(
            queue=self._core.store.queue(topic, int(queue_text)),
            body=message.body,
            properties=keys.encode_properties(properties),
            sys_flag=message.sys_flag & ~0x20,
            flag=message.flag,
            born_timestamp_ms=message.born_timestamp_ms,
            born_host=message.born_host,
            reconsume_times=message.reconsume_times,
            prepared_offset=message.prepared_offset,
            tags_code=tags_code(properties.get(keys.TAGS)),
            delay_ms=0,
            keys=index_keys(properties),
        )
