"""The fast path of sends from the socket into the log: all sends of one turn of the loop form one pass.

    bytes of each read -> frames -> drafts -> ONE append at the end of the turn -> replies -> ONE write per connection

A connection with many outstanding sends fills a pass by itself; many connections with one send each fill it together,
so that neither costs an append of its own. A plain message is handled here without a `Command`, in one of two tiers:

    first     code 310, JSON, a known topic, properties as in an earlier send but for the unique id (a *shape*)
    second    codes 10 and 310, JSON or binary, a known topic, any properties that are stored nearly as they came:
              Java's with keys, Go, C++, Rust, Node; at most twice the cost of the first, Java's usual sends

All other sends take the slow path, `send.handlers`, which puts its drafts into the same pass, so that the order
within a connection is the order of its frames. All three paths store and answer the same, byte for byte. Before a
batch, or a frame that is not a send, is handled, the pass is appended: a pull sees the sends before it.

The interface is `handle(data, connection, other) -> (consumed, replies)`.
"""

import asyncio
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final, final

import msgspec

from gantry_broker.server.core.gate import Gate
from gantry_broker.server.core.refusals import Refusal, store_refusal
from gantry_broker.server.core.send_routes import (
    UNIQUE_END,
    UNIQUE_PREFIX,
    UNIQUE_PREFIX_BYTES,
    UNIQUE_START,
    SendRoute,
    SendRoutes,
    Shape,
    json_text,
)
from gantry_broker.server.core.stats import BrokerStats
from gantry_broker.server.send.ack_gate import AckGate
from gantry_broker.server.send.flow_control import FlowControl
from gantry_broker.server.send.headers import (
    BINARY_SENDS,
    BinaryHeader,
    PlainRequest,
    SendV1Header,
    decode_send,
    decode_send_v1,
)
from gantry_broker.store.draft import Draft
from gantry_broker.store.message_store import MessageStore
from gantry_remoting import PASS_REPLY_BYTES_MAX, Connection
from gantry_wire import Command, RequestCode
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.frame import FRAME_HEAD, HEADER_LENGTH_MASK, Frame, check_frame_head
from gantry_wire.header import FLAG_ONEWAY, FLAG_RESPONSE, decode_binary_parts
from gantry_wire.limits import EXT_FIELDS_MAX, WireLimits
from gantry_wire.message import CLEARED_FLAGS, FLAG_BORN_HOST_V6, encode_host

SEND_V2_PREFIX: Final = b'{"code":%d,' % RequestCode.SEND_MESSAGE_V2
SEND_V1_PREFIX: Final = b'{"code":%d,' % RequestCode.SEND_MESSAGE
NO_ANSWER: Final = b""
PLAIN_HEADER_BYTES_MAX: Final = 6 * EXT_FIELDS_MAX
"""A longer JSON header may exceed the limit of fields, which only the slow path counts: `"":"",` has 6 bytes."""
NEVER_A_PREFIX: Final = b"\0"
"""A prefix that no JSON header has, which switches the fast path off."""
UNHANDLED: Final = b"not handled yet"
"""The result of a `FrameHandler` for a request that must wait; compared by identity, and never sent."""
_HEAD_BYTES: Final = FRAME_HEAD.size
_unpack_head: Final = FRAME_HEAD.unpack_from
HEADS_COUNT: Final = 2048
_HEADS: Final = [FRAME_HEAD.pack(4 + length, length) for length in range(HEADS_COUNT)]
"""Frame heads of short JSON replies without a body, by header length."""

Answer = tuple[bytes, bytes, int]
"""(reply template, unique id, opaque); the template is NO_ANSWER for a one-way send."""

FrameHandler = Callable[[Frame, Connection], bytes | None]
TakeSigned = Callable[[bytes, bytes, bytes, int], bool]
"""Called with header, body, host and host flag; returns True if the plain send is permitted and now in the pass."""


@final
class SendPath:
    """Handles the bytes of connections, and holds the pass: the drafts of this turn that are not appended yet.

    `_runs` holds their connections: (connection, end of its drafts). Owned by the event loop.
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
        gate: Gate,
        ack_gate: AckGate,
        signed_sends: "Callable[[SendPath], TakeSigned] | None" = None,  # None: no access control
    ) -> None:
        """With ``signed_sends`` each JSON send of code 310 goes to the function that it returns.

        A send for which that function returns False goes to `other`, the slow path.
        """
        self._store = store
        self._routes = routes
        self._flow = flow
        self._gate: Final = gate
        self._stats = stats
        self._limits = limits
        self._total_max = limits.frame_bytes_max - 4
        self.body_bytes_max = body_bytes_max
        """The limit of the body of a plain send."""

        self._loop = loop
        self._prefix: Final = SEND_V2_PREFIX if signed_sends is None else NEVER_A_PREFIX
        self._signed: Final = None if signed_sends is None else signed_sends(self)

        self._hosts: dict[Connection, tuple[bytes, int]] = {}
        self._is_flush_scheduled = False
        self._runs: list[tuple[Connection, int]] = []
        self.drafts: Final[list[Draft]] = []
        self.answers: Final[list[Answer]] = []
        self.no_wait_indexes: set[int] = set()
        """The indexes of drafts in the pass whose senders want no answer about durability (`WAIT=false`)."""
        self.ack_gate: Final = ack_gate
        """Holds the answers in the modes that promise more than an append."""
        self.refusal: Refusal | None = None
        """The refusal of the sends of the present read; None if they are accepted."""

    def set_limits(self, *, body_bytes_max: int) -> None:
        """Set the limit of the body of a plain send."""
        self.body_bytes_max = body_bytes_max

    def host_of(self, connection: Connection) -> bytes:
        """Return the peer's address in the format of records."""
        return self.host_and_flag(connection)[0]

    def host_and_flag(self, connection: Connection) -> tuple[bytes, int]:
        """Return the peer's address and the flag for its length."""
        known = self._hosts.get(connection)
        if known is None:
            host = encode_host(*connection.peer)
            known = self._hosts[connection] = (host, FLAG_BORN_HOST_V6 if len(host) == 20 else 0)
        return known

    def forget(self, connection: Connection) -> None:
        self._hosts.pop(connection, None)
        self._flow.forget(connection)

    def handle(self, data: bytes, connection: Connection, other: FrameHandler) -> tuple[int, bytes]:
        """Handle the complete frames at the start of `data`. Frames that are not plain sends go to `other`.

        It stops before a request that must wait (`UNHANDLED`), and after PASS_REPLY_BYTES_MAX of replies. Replies to
        sends follow when the pass is appended, at the end of this turn of the loop.
        """
        self.refusal = (
            self._gate.write_refusal or self._gate.client_send_refusal or self._flow.refusal(connection, data)
        )
        if self.refusal is None:
            self.refusal = self.ack_gate.refusal
        replies: list[bytes] = []
        try:
            position = self._take_frames(data, connection, other, replies)
            if 4 <= len(data) - position < _HEAD_BYTES:  # an invalid length closes the connection: answer first
                check_frame_head(int.from_bytes(data[position : position + 4], "big"), 0, self._limits)
        except RemoteProtocolError:
            self.flush_for(connection)
            connection.send(b"".join(replies))
            raise
        finally:
            if self.drafts:  # in any case, so that no draft is counted to the next connection's run
                self._end_run(connection)
                if not self._is_flush_scheduled:
                    self._is_flush_scheduled = True
                    self._loop.call_soon(self._flush_turn)
        return position, b"".join(replies)

    def _take_frames(self, data: bytes, connection: Connection, other: FrameHandler, replies: list[bytes]) -> int:
        """Handle frames in the hot loop; return the end of the last frame that was handled.

        One long function on purpose: every line runs for each message. Frames that are no plain sends go to `other`.
        """
        position, end, reply_bytes = 0, len(data), 0
        total_max, body_bytes_max = self._total_max, self.body_bytes_max
        by_topic, signed = self._routes.by_topic, self._signed
        drafts, answers = self.drafts, self.answers
        host, host_flag = self.host_and_flag(connection)
        # Refused sends take the slow path, which answers them.
        prefix = self._prefix if self.refusal is None else NEVER_A_PREFIX
        is_fast_path_open = prefix is SEND_V2_PREFIX
        while end - position >= _HEAD_BYTES:
            total, type_and_header = _unpack_head(data, position)
            header_bytes = type_and_header & HEADER_LENGTH_MASK
            if total > total_max or header_bytes + 4 > total or type_and_header != header_bytes:
                check_frame_head(total, type_and_header, self._limits)
            frame_end = position + 4 + total
            if frame_end > end:
                break
            header_end = position + _HEAD_BYTES + header_bytes
            header = data[position + _HEAD_BYTES : header_end]
            position = frame_end
            if header.startswith(prefix) and type_and_header == header_bytes <= PLAIN_HEADER_BYTES_MAX:
                try:
                    request = decode_send(header)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    request = None
                if request is not None:
                    fields = request.fields
                    route = by_topic.get(fields.topic)
                    text = fields.properties or ""
                    queue_id = fields.queue_id
                    if (
                        route is not None
                        and 0 <= queue_id < len(route.slots)
                        and 0 < frame_end - header_end <= body_bytes_max
                        and not (fields.batch or fields.reconsume_times or request.flag & FLAG_RESPONSE)
                    ):
                        shape = route.shapes.get(text[UNIQUE_END:])
                        if shape is not None and text[:UNIQUE_START] == UNIQUE_PREFIX:
                            key = text[UNIQUE_START:UNIQUE_END]
                            unique = key.encode()
                            if len(unique) == 32 and unique.isalnum():
                                slot = route.slots[queue_id] or self._routes.create_slot(route, queue_id)
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
                                template = NO_ANSWER if request.flag & FLAG_ONEWAY else slot.reply_template
                                answers.append((template, unique, request.opaque))
                                continue
                        if self.put_send(request, route, data[header_end:frame_end], host, host_flag):
                            continue
            elif is_fast_path_open and self._take_unusual_send(
                type_and_header >> 24, header, data[header_end:frame_end], host, host_flag
            ):
                continue
            body = data[header_end:frame_end]
            is_v2_json = type_and_header == header_bytes <= PLAIN_HEADER_BYTES_MAX and header.startswith(SEND_V2_PREFIX)
            if signed is not None and is_v2_json and signed(header, body, host, host_flag):
                connection.is_authenticated = True
                continue
            reply = other(Frame(type_and_header >> 24, header, body), connection)
            if reply:
                if reply is UNHANDLED:  # the connection is paused, and delivers the frame again later
                    position = header_end - header_bytes - _HEAD_BYTES
                    break
                replies.append(reply)
                reply_bytes += len(reply)
                if reply_bytes > PASS_REPLY_BYTES_MAX:
                    break
        return position

    def _take_unusual_send(self, serialization: int, header: bytes, body: bytes, host: bytes, host_flag: int) -> bool:
        """Put a plain send with a binary header or long names into the pass. False leaves it to the slow path."""
        request: SendV1Header | BinaryHeader
        try:
            if serialization:
                kind = BINARY_SENDS.get(header[:2])
                if kind is None:
                    return False
                _, _, _, opaque, flag, _, ext = decode_binary_parts(header, self._limits)
                request = BinaryHeader(opaque, msgspec.convert(ext, kind, strict=False), flag)
            elif header.startswith(SEND_V1_PREFIX) and len(header) <= PLAIN_HEADER_BYTES_MAX:
                request = decode_send_v1(header)
            else:
                return False
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, RemoteProtocolError):
            return False
        send = request.fields
        route = self._routes.by_topic.get(send.topic)
        if (
            route is None
            or not 0 <= send.queue_id < len(route.slots)
            or not 0 < len(body) <= self.body_bytes_max
            or send.batch
            or send.reconsume_times
            or request.flag & FLAG_RESPONSE
        ):
            return False
        return self.put_send(request, route, body, host, host_flag)

    def put_send(self, request: PlainRequest, route: SendRoute, body: bytes, host: bytes, host_flag: int) -> bool:
        """Put a plain send with any properties into the pass. False leaves it to the slow path.

        The caller has checked the queue, the body and that the send is neither a batch nor a consumer's retry.
        """
        fields = request.fields
        text = fields.properties or ""
        queue_id = fields.queue_id
        key = text[UNIQUE_START:UNIQUE_END]
        shape = route.shapes.get(text[UNIQUE_END:])
        keys: tuple[str, ...]
        if (
            shape is not None
            and text[:UNIQUE_START] == UNIQUE_PREFIX
            and len(key) == 32
            and key.isascii()
            and key.isalnum()
        ):
            unique, tags_code, keys, is_waiting_for_store = key.encode(), shape.tags_code, (key,), True
            data = UNIQUE_PREFIX_BYTES + unique + shape.tail
        else:
            properties = self._routes.stored_properties(text)
            if properties is None:
                return False
            data, key, tags_code, keys, is_shape, is_waiting_for_store = properties
            unique = key.encode() if key.isascii() and key.isalnum() else json_text(key)
            if is_shape:
                route.cache_shape(text[UNIQUE_END:], Shape(data[UNIQUE_END:], tags_code))
        slot = route.slots[queue_id] or self._routes.create_slot(route, queue_id)
        if not is_waiting_for_store:
            self.no_wait_indexes.add(len(self.drafts))
        self.drafts.append(
            (  # type: ignore[arg-type]  # a plain tuple of Draft's fields: half the cost
                slot.queue,
                body,
                data,
                fields.sys_flag & ~CLEARED_FLAGS | host_flag,
                fields.flag,
                fields.born_timestamp,
                host,
                0,
                0,
                tags_code,
                0,
                keys,
            )
        )
        template = NO_ANSWER if request.flag & FLAG_ONEWAY else slot.reply_template
        self.answers.append((template, unique, request.opaque))
        return True

    def flush_for(self, connection: Connection) -> None:
        """Append the pass now, since the next request of `connection` must see its own sends."""
        if self.drafts:
            self._end_run(connection)
            self.flush()

    def flush(self) -> None:
        """Append the pass, and answer its sends or hold their answers. If the store refuses, it stores none of them."""
        if not self.drafts:
            return
        # The lists are cleared in place, because the loop that fills them keeps references to them.
        drafts, answers, runs, no_wait_indexes = self.drafts[:], self.answers[:], self._runs, self.no_wait_indexes
        self.drafts.clear()
        self.answers.clear()
        self._runs = []
        if no_wait_indexes:
            self.no_wait_indexes = set()  # its indexes belong to this pass
        began = self._loop.time()
        self._flow.begin_append(began)
        try:
            physical_offsets, queue_offsets = self._store.append(drafts)
        except Exception as error:  # noqa: BLE001 - every sender of the pass must get an answer
            self._stats.count_put_failures(len(drafts))
            self._refuse(answers, runs, error)
            return
        elapsed_s = self._loop.time() - began
        self._flow.end_append(elapsed_s)
        self._stats.times.record(elapsed_s, len(drafts))
        self._stats.count_put(len(drafts), self._store)
        if self.ack_gate.must_wait():
            self._hold(answers, zip(physical_offsets, queue_offsets, strict=True), runs, no_wait_indexes)
            return
        heads = _HEADS
        sends = zip(answers, physical_offsets, queue_offsets, strict=True)
        number = 0
        for connection, end in runs:
            parts: list[bytes] = []
            for (template, unique, opaque), physical, queue_offset in islice(sends, end - number):
                if template:
                    reply = template % (physical, queue_offset, unique, opaque)
                    size = len(reply)
                    parts += (heads[size] if size < HEADS_COUNT else FRAME_HEAD.pack(4 + size, size), reply)
            number = end
            if parts:
                connection.send(b"".join(parts))

    def _hold(
        self,
        answers: list[Answer],
        offsets: Iterable[tuple[int, int]],
        runs: list[tuple[Connection, int]],
        no_wait_indexes: set[int],
    ) -> None:
        """Hold the answers of an appended pass, except those whose producers do not want to wait."""
        heads = _HEADS
        if no_wait_indexes:
            self._store.note_answered()
        held: list[tuple[Connection, bytes, int]] = []
        sends = zip(answers, offsets, strict=True)
        number = 0
        for connection, end in runs:
            parts: list[bytes] = []
            at_once: list[bytes] = []
            count = 0
            for (template, unique, opaque), (physical, queue_offset) in islice(sends, end - number):
                if template:
                    reply = template % (physical, queue_offset, unique, opaque)
                    size = len(reply)
                    framed = (heads[size] if size < HEADS_COUNT else FRAME_HEAD.pack(4 + size, size), reply)
                    if no_wait_indexes and number in no_wait_indexes:
                        at_once += framed
                    else:
                        parts += framed
                        count += 1
                number += 1
            if at_once:
                connection.send(b"".join(at_once))
            if parts:
                held.append((connection, b"".join(parts), count))
        if held:
            self.ack_gate.hold(held, self._store.log.wrote)

    def _flush_turn(self) -> None:
        self._is_flush_scheduled = False
        self.flush()

    def _end_run(self, connection: Connection) -> None:
        end = len(self.drafts)
        if not self._runs or self._runs[-1][1] != end:
            self._runs.append((connection, end))

    def _refuse(self, answers: list[Answer], runs: list[tuple[Connection, int]], error: Exception) -> None:
        code, remark, _ = refusal = store_refusal(error)
        self._stats.refusals.count(refusal, len(answers))
        number = 0
        for connection, end in runs:
            refused = [answer for answer in answers[number:end] if answer[0]]
            replies = [Command(code=code, opaque=answer[2], flag=1, remark=remark).encode() for answer in refused]
            connection.send(b"".join(replies))
            number = end
