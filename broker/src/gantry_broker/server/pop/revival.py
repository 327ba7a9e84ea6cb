"""Delivers popped messages again whose invisible time is over.

    [copies of the messages in the retry topic ..., the ack of the originals]        one append, in one log file

The copies and the ack are appended together, so that a crash in between leaves copies without the ack, whose messages
are delivered twice, and never an ack without copies. A message goes to the retry topic of its topic and group; one that
was delivered too often (`retryMaxTimes` of the group) goes to the dead letters. A damaged message that may still be
healed from a replica waits; one that has expired is dropped.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple, final

from gantry_broker.errors import BrokerError
from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.pop.checkpoints import Checkpoint, PopQueue
from gantry_broker.server.pop.journal import PopJournal
from gantry_broker.server.pop.records import given_up_properties, retry_draft
from gantry_broker.server.pop.writer import PopWriter, ack_entry
from gantry_broker.store.draft import Draft
from gantry_wire import names
from gantry_wire import properties as keys
from gantry_wire.message import StoredMessage, decode_record

log = logging.getLogger(__name__)

SLICE_MESSAGES_MAX: Final = 64
"""The limit of messages that are delivered before other requests are served, up to one batch more: milliseconds."""

SLICE_BYTES_MAX: Final = 1 << 20
"""The limit of the bytes of these messages, up to one batch more."""

BATCH_BYTES_MAX: Final = 1 << 20
"""The limit of the bytes of copies in one append, unless one message is larger."""

RETRY_MS: Final = 1_000
"""How soon a message is tried again that is being healed, or whose copy the store has refused."""

RETRIES_DEFAULT: Final = 16
"""How often a message of a group without a configuration is delivered again."""


class Batch(NamedTuple):
    """The next messages of a checkpoint to deliver again."""

    drafts: list[Draft]
    offsets: list[int]
    """Their queue offsets, with those of messages that do not exist any more."""

    size: int
    """The bytes of the messages."""

    is_waiting: bool
    """Whether the next message is damaged and may still be healed."""


@final
class Reviver:
    """Delivers messages again. Owned by the event loop."""

    def __init__(self, core: BrokerCore, journal: PopJournal, writer: PopWriter) -> None:
        self._core: Final = core
        self._journal: Final = journal
        self._writer: Final = writer
        self.revived_count = 0
        """The number of messages that were delivered again since this start."""

        self.given_up_count = 0
        """The number of messages that went to the dead letters."""

        self.dropped_count = 0
        """The number of messages that had expired before they could be delivered again."""

    def __repr__(self) -> str:
        return f"<Reviver revived={self.revived_count} given_up={self.given_up_count} dropped={self.dropped_count}>"

    def revive_due(self) -> bool:
        """Deliver some messages whose time is over. True if there may be more. Raises errors of the store."""
        state, now_ms = self._journal.state, self._journal.times.monotonic_ms()
        count = size = 0
        while count < SLICE_MESSAGES_MAX and size < SLICE_BYTES_MAX:
            checkpoint = state.take_due(now_ms)
            if checkpoint is None:
                return False
            try:
                batch = self._revive_batch(checkpoint)
            except BrokerError:
                state.schedule(checkpoint, now_ms + RETRY_MS)
                raise
            if not checkpoint.is_done:
                state.schedule(checkpoint, now_ms + RETRY_MS if batch.is_waiting else checkpoint.due_ms)
            count, size = count + max(1, len(batch.offsets)), size + batch.size
        return True

    def _revive_batch(self, checkpoint: Checkpoint) -> Batch:
        """Deliver the next messages of a checkpoint; return them."""
        self._writer.flush()  # acks of this turn count
        batch = self._next_batch(checkpoint)
        if batch.offsets:
            bits = checkpoint.bits_of(batch.offsets)
            self._writer.append([ack_entry(checkpoint, bits)], batch.drafts)
            self._core.stats.count_put(len(batch.drafts), self._core.store)
            self._journal.state.ack(checkpoint, bits)
            self._writer.notify_acked()
        return batch

    def _next_batch(self, checkpoint: Checkpoint) -> Batch:
        drafts: list[Draft] = []
        offsets: list[int] = []
        size = 0
        for offset in checkpoint.unacked:
            message = self._read(checkpoint.queue, offset)
            if message is _WAITING:
                return Batch(drafts, offsets, size, is_waiting=True)
            if message is not None:
                if drafts and size + len(message.body) > BATCH_BYTES_MAX:
                    break
                size += len(message.body)
                drafts.append(self._copy(checkpoint, message))
            else:
                self._count_dropped(checkpoint.queue, offset)
            offsets.append(offset)
        return Batch(drafts, offsets, size, is_waiting=False)

    def _read(self, queue: PopQueue, offset: int) -> StoredMessage | None:
        """Return the message at a queue offset; None if it does not exist any more."""
        result = self._core.store.read(queue.topic, queue.queue_id, offset, count_max=1, bytes_max=1, accept=None)
        if result.is_waiting and not result.body:
            return _WAITING
        message = decode_record(result.body) if result.body else None
        return message if message is not None and message.queue_offset == offset else None

    def _count_dropped(self, queue: PopQueue, offset: int) -> None:
        self.dropped_count += 1
        facts = {"topic": queue.topic, "queue": queue.queue_id, "group": queue.group, "offset": offset}
        log.warning("popped message has expired before it was acked; it is not delivered again", extra=facts)

    def _copy(self, checkpoint: Checkpoint, message: StoredMessage) -> Draft:
        """Return the copy of a message for the retry topic, or for the dead letters."""
        core, group, topic = self._core, checkpoint.queue.group, checkpoint.queue.topic
        config = core.groups.all.get(group)
        retries_max = RETRIES_DEFAULT if config is None else config.retry_max_times
        if message.reconsume_times >= retries_max and not checkpoint.is_suspended:
            self.given_up_count += 1
            target, extra = names.dead_letter_topic(group), given_up_properties(message, self._origin(topic, group))
        else:
            self.revived_count += 1
            target, extra = self._retry_topic(topic, group), {keys.FIRST_POP_TIME: str(checkpoint.pop_time_ms)}
        core.topics.ensure_queue(target, 0)
        failures = 0 if checkpoint.is_suspended else 1
        return retry_draft(message, core.store.queues.get_or_create(target, 0), extra, failures)

    def _retry_topic(self, topic: str, group: str) -> str:
        if topic.startswith(names.RETRY_PREFIX):
            return topic
        return names.pop_retry_topic(topic, group, is_v2=self._core.settings.pop.is_retry_topic_v2)

    def _origin(self, topic: str, group: str) -> str:
        """Return the topic to which the messages of a queue were sent."""
        return names.pop_retry_origin(topic, group) or topic


_WAITING: Final = StoredMessage(topic="", queue_id=0, body=b"")
"""The result of reading a message that is damaged and may still be healed."""
