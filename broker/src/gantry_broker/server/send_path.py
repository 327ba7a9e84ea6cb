"""The way of a message from the socket into the log: all sends of one turn of the loop in one pass.

    bytes of each read -> frames -> drafts -> ONE append at the end of the turn -> replies -> ONE write per connection

A connection with many sends outstanding fills a pass by itself; many connections with one each fill it together, so
that neither pays for an append of its own. The usual message (code 310, JSON, a known topic, a known shape of
properties) is handled here on primitives. Anything out of the ordinary goes through `handlers.send`, which reads the
same request in words and puts its draft into the same pass, so that order within a connection is the order of its
frames. A frame that is no send has the pass appended first: a pull sees the sends before it.

The interface is `handle(data, connection) -> (consumed, replies)`; a compiled twin can take its place.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final, final

import msgspec

from gantry_broker.errors import DiskTooSlow, LogReadOnly, MessageTooLarge, PoolExhausted, StoreFull
from gantry_broker.server.flow_control import FlowControl, Refusal
from gantry_broker.server.gate import Gate
from gantry_broker.server.parked import ParkedReplies
from gantry_broker.server.send_routes import UNIQUE_END, UNIQUE_PREFIX, UNIQUE_PREFIX_BYTES, UNIQUE_START, SendRoutes
from gantry_broker.server.stats import BrokerStats
from gantry_broker.store.draft import Draft
from gantry_broker.store.message_store import MessageStore
from gantry_remoting import PASS_REPLY_BYTES_MAX, Connection
from gantry_wire import Command, ResponseCode
from gantry_wire.commands.fields import Int32
from gantry_wire.commands.send import SendMessageV2
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.frame import FRAME_HEAD, Frame, check_frame_head
from gantry_wire.limits import WireLimits
from gantry_wire.message import FLAG_BORN_HOST_V6, FLAG_STORE_HOST_V6, TRANSACTION_MASK, encode_host

log = logging.getLogger(__name__)

SEND_V2_PREFIX: Final = b'{"code":310,'
FLAG_RESPONSE: Final = 1
FLAG_ONEWAY: Final = 2
NO_ANSWER: Final = b""
NEVER_A_PREFIX: Final = b"\0"
"""No JSON header begins so."""
CLEARED_FLAGS: Final = TRANSACTION_MASK | FLAG_BORN_HOST_V6 | FLAG_STORE_HOST_V6
"""What a producer may not say of its message: the broker knows the hosts, and transactions come by another way."""
_HEAD_BYTES: Final = FRAME_HEAD.size
_unpack_head: Final = FRAME_HEAD.unpack_from
HEADS_COUNT: Final = 2048
_HEADS: Final = [FRAME_HEAD.pack(4 + length, length) for length in range(HEADS_COUNT)]
"""Frame heads of short JSON replies without a body, by header length."""

Answer = tuple[bytes, bytes, int]
"""(reply template, unique id, opaque); the template is NO_ANSWER for a oneway send."""


class SendV2Header(msgspec.Struct, kw_only=True, gc=False):
    """The header of a JSON send, decoded in one step."""

    opaque: Int32
    fields: SendMessageV2 = msgspec.field(name="extFields")
    flag: int = 0


_decode_send: Final = msgspec.json.Decoder(SendV2Header, strict=False).decode

OtherFrame = Callable[[Frame, Connection], bytes | None]
TakeSigned = Callable[[bytes, bytes, bytes, int], bool]


@final
class SendPath:
    """Handles the bytes of connections, and holds the pass: drafts of this turn of the loop that are not appended yet.

    `runs` says whose they are: (connection, end of its drafts). Owned by the event loop.
    """

    def __init__(
        self,
        store: MessageStore,
        routes: SendRoutes,
        flow: FlowControl,
        stats: BrokerStats,
        *,
        limits: WireLimits,
        body_bytes_max: int,
        loop: asyncio.AbstractEventLoop,
        gate: Gate | None = None,  # None: always open
        parked: ParkedReplies | None = None,  # None: what is appended may be acknowledged
        is_guarded: bool = False,  # True: every frame goes to `other`, which asks who may
    ) -> None:
        self._store = store
        self._routes = routes
        self._flow = flow
        self._gate: Final = gate or Gate()
        self._stats = stats
        self._limits = limits
        self._total_max = limits.frame_bytes_max - 4
        self.body_bytes_max = body_bytes_max
        """The largest body that is no matter of words."""

        self._loop = loop
        self._prefix: Final = NEVER_A_PREFIX if is_guarded else SEND_V2_PREFIX
        self.signed: TakeSigned | None = None
        """With access control on: takes header, body, host and its flag of a plain send whose sender may."""

        self._hosts: dict[Connection, tuple[bytes, int]] = {}
        self._is_flush_scheduled = False
        self._runs: list[tuple[Connection, int]] = []
        self.drafts: Final[list[Draft]] = []
        self.answers: Final[list[Answer]] = []
        self.unwaited: Final[set[int]] = set()
        """Drafts of the pass whose senders do not want to wait until they are promised, by their places."""
        self.parked: Final = parked
        """Where answers wait in the modes that promise more than an append does."""
        self.refusal: Refusal | None = None
        """Why sends of the read that is being handled are refused, if they are."""

    def host_of(self, connection: Connection) -> bytes:
        """The peer's address as records hold it."""
        return self.host_and_flag(connection)[0]

    def host_and_flag(self, connection: Connection) -> tuple[bytes, int]:
        """The peer's address and the flag that goes with its length."""
        known = self._hosts.get(connection)
        if known is None:
            host = encode_host(*connection.peer)
            known = self._hosts[connection] = (host, FLAG_BORN_HOST_V6 if len(host) == 20 else 0)
        return known

    def forget(self, connection: Connection) -> None:
        self._hosts.pop(connection, None)

    def handle(self, data: bytes, connection: Connection, other: OtherFrame) -> tuple[int, bytes]:
        """Handle every whole frame at the start of `data`. Frames that are no plain send go to `other`.

        Replies to sends follow when the pass is appended, at the end of this turn of the loop.
        """
        self.refusal = self._gate.sends or self._gate.news or self._flow.refusal(self._loop.time(), len(self.drafts))
        if self.refusal is None and self.parked is not None:
            self.refusal = self.parked.refusal
        replies: list[bytes] = []
        try:
            position = self._take_frames(data, connection, other, replies)
            if 4 <= len(data) - position < _HEAD_BYTES:  # a length that cannot be ends the connection: answer first
                check_frame_head(int.from_bytes(data[position : position + 4], "big"), 0, self._limits)
        except RemoteProtocolError:
            self.flush_for(connection)
            connection.send(b"".join(replies))
            raise
        finally:
            if self.drafts:  # ours or not, and whatever happened: no draft is left for the next connection's run
                self._end_run(connection)
                if not self._is_flush_scheduled:
                    self._is_flush_scheduled = True
                    self._loop.call_soon(self._flush_turn)
        return position, b"".join(replies)

    def _take_frames(self, data: bytes, connection: Connection, other: OtherFrame, replies: list[bytes]) -> int:
        """The hot loop: where the last whole frame ends. One long function on purpose; every line runs per message.

        A plain send is put into the pass here. At the first sign of something else its frame goes to `other` whole.
        """
        position, end, reply_bytes = 0, len(data), 0
        total_max, body_bytes_max = self._total_max, self.body_bytes_max
        by_topic, signed = self._routes.by_topic, self.signed
        drafts, answers = self.drafts, self.answers
        host, host_flag = self.host_and_flag(connection)
        # Refused sends take the readable path, which says so.
        prefix = self._prefix if self.refusal is None else NEVER_A_PREFIX
        while end - position >= _HEAD_BYTES:
            total, type_and_header = _unpack_head(data, position)
            header_bytes = type_and_header & 0xFFFFFF
            if total > total_max or header_bytes + 4 > total or type_and_header != header_bytes:
                check_frame_head(total, type_and_header, self._limits)
            frame_end = position + 4 + total
            if frame_end > end:
                break
            header_end = position + _HEAD_BYTES + header_bytes
            header = data[position + _HEAD_BYTES : header_end]
            position = frame_end
            if header.startswith(prefix) and type_and_header == header_bytes:
                try:
                    request = _decode_send(header)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    request = None
                if request is not None:
                    fields = request.fields
                    route = by_topic.get(fields.topic)
                    text = fields.properties
                    queue_id = fields.queue_id
                    if (
                        route is not None
                        and text is not None
                        and 0 <= queue_id < len(route.slots)
                        and text[:UNIQUE_START] == UNIQUE_PREFIX
                        and 0 < frame_end - header_end <= body_bytes_max
                        and not (fields.batch or fields.reconsume_times or request.flag & FLAG_RESPONSE)
                    ):
                        tail = text[UNIQUE_END:]
                        shape = route.shapes.get(tail) or route.learn(tail)
                        key = text[UNIQUE_START:UNIQUE_END]
                        unique = key.encode()
                        if shape is not None and len(unique) == 32 and unique.isalnum():
                            slot = route.slots[queue_id] or self._routes.slot(route, queue_id)
                            drafts.append(
                                (  # type: ignore[arg-type]  # a plain tuple of Draft's fields: half the cost
                                    slot.queue,
                                    data[header_end:frame_end],
                                    UNIQUE_PREFIX_BYTES + unique + shape.tail,
                                    fields.sys_flag & ~CLEARED_FLAGS | host_flag,
                                    fields.flag,
                                    fields.born_timestamp,
                                    host,
                                    0,
                                    0,
                                    shape.tags_code,
                                    0,
                                    (key,),
                                )
                            )
                            template = NO_ANSWER if request.flag & FLAG_ONEWAY else slot.template
                            answers.append((template, unique, request.opaque))
                            continue
            body = data[header_end:frame_end]
            is_v2_json = type_and_header == header_bytes and header.startswith(SEND_V2_PREFIX)
            if signed is not None and is_v2_json and signed(header, body, host, host_flag):
                continue
            reply = other(Frame(type_and_header >> 24, header, body), connection)
            if reply:
                replies.append(reply)
                reply_bytes += len(reply)
                if reply_bytes > PASS_REPLY_BYTES_MAX:
                    break
        return position

    def flush_for(self, connection: Connection) -> None:
        """Append the pass now, since what `connection` asks next must see its own sends."""
        if self.drafts:
            self._end_run(connection)
            self.flush()

    def flush(self) -> None:
        """Append the pass and answer everybody in it. A store that refuses stores nothing of it."""
        if not self.drafts:
            return
        # The lists are emptied in place: the loop that fills them holds on to them.
        drafts, answers, runs = self.drafts[:], self.answers[:], self._runs
        self.drafts.clear()
        self.answers.clear()
        self._runs = []
        began = self._loop.time()
        try:
            physical_offsets, queue_offsets = self._store.append(drafts)
        except Exception as error:  # noqa: BLE001 - whatever it is, every sender of the pass gets an answer
            self.unwaited.clear()
            self._stats.put_failures += len(drafts)
            self._refuse(answers, runs, error)
            return
        elapsed_s = self._loop.time() - began
        self._flow.appended(elapsed_s)
        self._stats.times.took(elapsed_s, len(drafts))
        self._stats.put(len(drafts), self._store)
        if self.parked is not None and self.parked.must_wait():
            self._park(answers, zip(physical_offsets, queue_offsets, strict=True), runs)
            return
        heads = _HEADS
        placed = zip(answers, physical_offsets, queue_offsets, strict=True)
        number = 0
        for connection, end in runs:
            parts: list[bytes] = []
            for (template, unique, opaque), physical, queue_offset in islice(placed, end - number):
                if template:
                    reply = template % (physical, queue_offset, unique, opaque)
                    size = len(reply)
                    parts += (heads[size] if size < HEADS_COUNT else FRAME_HEAD.pack(4 + size, size), reply)
            number = end
            if parts:
                connection.send(b"".join(parts))

    def _park(
        self, answers: list[Answer], places: Iterable[tuple[int, int]], runs: list[tuple[Connection, int]]
    ) -> None:
        """The pass is appended; its answers wait, but for those whose senders said that they need not."""
        assert self.parked is not None, "without a waiting room there is nothing to wait for"
        unwaited, heads = self.unwaited, _HEADS
        waiting: list[tuple[Connection, bytes, int]] = []
        placed = zip(answers, places, strict=True)
        number = 0
        for connection, end in runs:
            parts: list[bytes] = []
            at_once: list[bytes] = []
            count = 0
            for (template, unique, opaque), (physical, queue_offset) in islice(placed, end - number):
                if template:
                    reply = template % (physical, queue_offset, unique, opaque)
                    size = len(reply)
                    framed = (heads[size] if size < HEADS_COUNT else FRAME_HEAD.pack(4 + size, size), reply)
                    if unwaited and number in unwaited:
                        at_once += framed
                    else:
                        parts += framed
                        count += 1
                number += 1
            if at_once:
                connection.send(b"".join(at_once))
            if parts:
                waiting.append((connection, b"".join(parts), count))
        unwaited.clear()
        if waiting:
            self.parked.park_all(waiting, self._store.wrote)

    def _flush_turn(self) -> None:
        self._is_flush_scheduled = False
        self.flush()

    def _end_run(self, connection: Connection) -> None:
        end = len(self.drafts)
        if not self._runs or self._runs[-1][1] != end:
            self._runs.append((connection, end))

    def _refuse(self, answers: list[Answer], runs: list[tuple[Connection, int]], error: Exception) -> None:
        code, remark = store_refusal(error)
        number = 0
        for connection, end in runs:
            refused = [answer for answer in answers[number:end] if answer[0]]
            replies = [Command(code=code, opaque=answer[2], flag=1, remark=remark).encode() for answer in refused]
            connection.send(b"".join(replies))
            number = end


def store_refusal(error: Exception) -> tuple[ResponseCode, str]:
    """The code and text that tell a producer what its message ran into."""
    if isinstance(error, MessageTooLarge):
        return ResponseCode.MESSAGE_ILLEGAL, str(error)
    if isinstance(error, DiskTooSlow):
        return ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now, the disk is too slow: {error}"
    if isinstance(error, StoreFull):
        return ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now, the disk is full: {error}"
    if isinstance(error, PoolExhausted):
        return ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]system busy, start flow control for a while"
    if isinstance(error, LogReadOnly):
        return ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now, the log is read-only: {error}"
    log.error("the store failed", exc_info=error)
    return ResponseCode.SYSTEM_ERROR, f"the store failed: {type(error).__name__}"
