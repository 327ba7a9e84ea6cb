"""Recalls timer messages: decided in the turn of the request, so that an OK answer is final.

    request --> the message is pending --> cancelled in memory, recall record appended --> code 0 when it is durable
           `--> delivered, or unknown  --> refused, nothing stored

RocketMQ answers when the recall record is stored, whether or not the message was delivered meanwhile. Here the message
is looked up by its unique id in the key index, and must be pending: neither delivered nor due by now. From the append
on the deliverer skips it. After a restart or a promotion nothing is delivered before all recall records of the log are
read, so a recall that was answered with code 0 holds there, too. All pending messages with the topic and the unique id
are recalled: a producer that has repeated a send has only the handle of one of them.

Repeating a recall succeeds, and stores nothing, if its record is in the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final, final

from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.handlers import handles
from gantry_broker.server.core.refusals import Refused
from gantry_broker.server.send.ack_gate import AckGate
from gantry_broker.server.timers.drafts import recall_draft
from gantry_broker.server.timers.entries import (
    RECALL,
    REPLACED,
    Entry,
    cancels,
    decode_entry,
    entries_of,
    hash_key,
    recall_entry,
    replaces,
)
from gantry_broker.server.timers.service import TimerService
from gantry_remoting import Connection
from gantry_wire import Command, RequestCode, ResponseCode, names
from gantry_wire import properties as keys
from gantry_wire.commands.timers import RecallMessage, RecallResult
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.message import decode_record, encode_host
from gantry_wire.recall_handle import RecallHandle

COPIES_MAX: Final = 64
"""The limit of records with one unique id that are examined: copies of a message, repeated sends, and recalls."""
READ_TIMEOUT_S: Final = 3.0
"""How long a recall waits until the timers have read the message: the default timeout of the producer."""
READ_POLL_S: Final = 0.005
"""How often a recall that waits checks that."""
DIGITS_MAX: Final = 18
"""The limit of digits of the time in a handle."""


@final
class RecallHandlers:
    """The handler of recalls, code 370. Owned by the event loop."""

    def __init__(self, core: BrokerCore, timers: TimerService, ack_gate: AckGate) -> None:
        self._core = core
        self._timers = timers
        self._ack_gate = ack_gate

    @handles(RequestCode.RECALL_MESSAGE)
    def recall(self, command: Command, connection: Connection) -> Command | Awaitable[Command | None] | None:
        request = RecallMessage.read(command.ext)
        handle = self._check(request)
        if self._timers.read_now():
            return self._recall(request, handle, command, connection)
        return self._recall_later(request, handle, command, connection)

    async def _recall_later(
        self, request: RecallMessage, handle: RecallHandle, command: Command, connection: Connection
    ) -> Command | None:
        """Recall the message when the timers have read everything before the request."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + READ_TIMEOUT_S
        while not self._timers.read_now():
            if loop.time() >= deadline:
                text = "recall failed, this broker is still reading the timer messages; try again later"
                return command.reply(ResponseCode.SERVICE_NOT_AVAILABLE, text)
            await asyncio.sleep(READ_POLL_S)
        refusal = self._core.gate.refusal(command.code)
        if refusal is not None:
            return self._core.stats.refusals.reply(command, refusal)
        return self._recall(request, handle, command, connection)

    def _check(self, request: RecallMessage) -> RecallHandle:
        """Return the handle of a valid request. Raises Refused, in RocketMQ's order and with its codes."""
        core = self._core
        if not core.settings.is_recall_enabled or not core.settings.is_timer_enabled:
            raise Refused(ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")
        if core.topics.find(request.topic) is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{request.topic[:300]}] not exist")
        try:
            handle = RecallHandle.decode(request.recall_handle)
        except RemoteProtocolError as error:
            raise Refused(ResponseCode.ILLEGAL_OPERATION, str(error)) from error
        if handle.topic != request.topic:
            raise Refused(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match")
        if handle.broker_name != core.settings.broker_name:
            raise Refused(ResponseCode.ILLEGAL_OPERATION, "recall failed, broker service not available")
        text = handle.deliver_ms
        is_number = text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX
        left_ms = int(text) - core.clock.wall_ms() if is_number else -1
        if not 0 < left_ms <= core.settings.timer_delay_max_s * 1000 or not handle.unique_id:
            raise Refused(ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid")
        if not core.store.has_index:
            raise Refused(
                ResponseCode.NO_PERMISSION, "recall failed, this broker has no key index: messageIndexEnable=true"
            )
        return handle

    def _recall(
        self, request: RecallMessage, handle: RecallHandle, command: Command, connection: Connection
    ) -> Command | None:
        """Recall the pending messages of a handle; the answer waits until their recall records are durable."""
        pending, is_recalled = self._find_pending(handle)
        if not pending and not is_recalled:
            raise Refused(
                ResponseCode.ILLEGAL_OPERATION,
                "recall failed, timestamp invalid: the message was delivered, or does not exist",
            )
        if pending:
            self._append(pending, request, handle, connection)
        region = {keys.MESSAGE_REGION: self._core.settings.region}
        reply = command.reply(ext={**region, **RecallResult(msg_id=handle.unique_id).write()})
        return self._ack_gate.reply_or_hold(command, reply, connection)

    def _find_pending(self, handle: RecallHandle) -> tuple[dict[int, bytes], bool]:
        """Return the pending records of a handle by queue offset, and whether a record was recalled before.

        Raises ``IndexRebuilding``.
        """
        found, _, _ = self._core.store.keys.records(names.TIMER_TOPIC, handle.unique_id, COPIES_MAX, 0, 1 << 62)
        key_hash = hash_key(handle.topic.encode(), handle.unique_id.encode())
        messages: dict[int, tuple[Entry, bytes]] = {}
        recalls: list[Entry] = []
        copies: list[tuple[int, Entry]] = []  # (queue offset of the copy before, this copy)
        for record in found:
            entries = [decode_entry(one) for one in entries_of(record, 0, len(record))]
            for entry in entries:
                if entry.kind == REPLACED:
                    copies.append((entry.queue_offset, entries[0]))
                elif entry.key_hash == key_hash and entry.kind == RECALL:
                    recalls.append(entry)
                elif entry.key_hash == key_hash:
                    messages[entry.queue_offset] = entry, record
        now_ms = self._core.clock.wall_ms()
        pending: dict[int, bytes] = {}
        is_recalled = False
        for offset, (entry, record) in messages.items():
            is_replaced = any(previous == offset and replaces(copy, entry) for previous, copy in copies)
            if is_replaced or entry.due_ms <= now_ms or not self._timers.is_pending(entry):
                continue
            if entry.due_ms <= self._core.store.log.last_timestamp_ms and self._has_copy(handle, record):
                continue
            if any(cancels(one, entry) for one in recalls):
                is_recalled = True
            else:
                pending[offset] = record
        return pending, is_recalled

    def _has_copy(self, handle: RecallHandle, record: bytes) -> bool:
        """Whether the log has the delivered copy of a message. Raises ``IndexRebuilding``.

        Only a crash leaves a copy without the progress, and only if the clock was set back as well the message is not
        due now. Store times never go back, so the copy is not older than the message's time.
        """
        waiting = decode_record(record)
        found, _, _ = self._core.store.keys.records(handle.topic, handle.unique_id, COPIES_MAX, 0, 1 << 62)
        copies = (one for one in map(decode_record, found) if one.topic == handle.topic)
        out_ms = waiting.properties.get(keys.TIMER_OUT_MS)
        return any(one.properties.get(keys.TIMER_OUT_MS) == out_ms for one in copies)

    def _append(
        self, pending: dict[int, bytes], request: RecallMessage, handle: RecallHandle, connection: Connection
    ) -> None:
        """Append a recall record for each pending message, and cancel them in memory. Raises errors of the store."""
        core = self._core
        queue = core.store.queues.get_or_create(names.TIMER_TOPIC, 0)
        host = encode_host(*connection.peer)
        drafts = [
            recall_draft(
                record, queue, unique=handle.unique_id, group=request.producer_group or "", host=host,
                now_ms=core.clock.wall_ms(),
            )
            for record in pending.values()
        ]  # fmt: skip
        _, queue_offsets = core.store.append(drafts)
        for record, queue_offset in zip(pending.values(), queue_offsets, strict=True):
            entry = decode_entry(entries_of(record, 0, len(record))[0])
            self._timers.window.cancel(recall_entry(record, queue_offset, entry.key_hash))
        core.stats.count_put(len(drafts), core.store)
