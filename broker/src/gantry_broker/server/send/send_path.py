"""The fast path of sends from the socket into the log: all sends of one turn of the loop form one pass.

    bytes of each read -> frames -> drafts -> ONE append at the end of the turn -> replies -> ONE write per connection

A connection with many outstanding sends fills a pass by itself; many connections with one send each fill it together,
so that neither costs an append of its own. A plain message is handled here without a `Command`. The compiled batch
(`send_batch`) takes those of any usual form from the bytes of a read. In Python there are two tiers:

    first     code 310, JSON, a known topic, properties as in an earlier send but for the unique id (a *shape*)
    second    codes 10 and 310, JSON or binary, a known topic, any properties that are stored nearly as they came:
              Java's with keys, Go, C++, Rust, Node; at most twice the cost of the first, Java's usual sends

All other sends take the slow path, `send.handlers`, which puts its drafts into the same pass, so that the order
within a connection is the order of its frames. All paths store and answer the same, byte for byte. Before a
batch, or a frame that is not a send, is handled, the pass is appended: a pull sees the sends before it.

The interface is `handle(data, connection, other) -> (consumed, replies)`.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol, final

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
)
from gantry_broker.server.core.stats import BrokerStats
from gantry_broker.server.send.ack_gate import ANSWERS_FULL, AckGate
from gantry_broker.server.send.flow_control import FlowControl
from gantry_broker.server.send.headers import (
    PLAIN_HEADER_BYTES_MAX,
    SEND_V2_PREFIX,
    PlainRequest,
    decode_any_send,
    decode_send,
)
from gantry_broker.server.send.send_batch import NO_ANSWER, Answer, Batch, SendBatch, new_batch
from gantry_broker.store.draft import Draft
from gantry_broker.store.message_store import MessageStore
from gantry_remoting import PASS_REPLY_BYTES_MAX, Connection
from gantry_wire import Command
from gantry_wire.commands.pull import PULL_PREFIX
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.frame import FRAME_HEAD, HEADER_LENGTH_MASK, Frame, Serialization, check_frame_head
from gantry_wire.header import FLAG_ONEWAY, FLAG_RESPONSE
from gantry_wire.limits import WireLimits
from gantry_wire.message import CLEARED_FLAGS, FLAG_BORN_HOST_V6, encode_host

NEVER_A_PREFIX: Final = b"\0"
"""A prefix that no JSON header has, which switches the fast path off."""
Parts = tuple[bytes, ...]
"""A reply: the parts of its frame, which are written one after the other. Large bodies are not copied into a frame."""
JOINED_BYTES_MAX: Final = 8 * 1024
"""Replies without a part that is larger are joined: copying them costs less than a part of its own for each."""
UNHANDLED: Final[Parts] = (b"not handled yet",)
"""The result of a `FrameHandler` for a request that must wait; compared by identity, and never sent."""
UNKNOWN_KIND: Final = (max(Serialization) + 1) << 24
"""From here on, the second number of a frame has an unknown encoding of the header in its first byte."""
_HEAD_BYTES: Final = FRAME_HEAD.size
_unpack_head: Final = FRAME_HEAD.unpack_from
FrameHandler = Callable[[Frame, Connection], Parts | None]


class Signed(Protocol):
    """The fast path of signed sends: see `signed_sends`."""

    @property
    def permit(self) -> Callable[[str, str], Callable[[bytes], bytes] | None] | None: ...

    def take(self, header: bytes, body: bytes, host: bytes, host_flag: int) -> bool: ...


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
        signed_sends: "Callable[[SendPath], Signed] | None" = None,  # None: no access control
    ) -> None:
        """With ``signed_sends`` each JSON send of code 310 goes to `take` of the object that it returns.

        A send for which `take` returns False goes to `other`, the slow path.
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
        signed = None if signed_sends is None else signed_sends(self)
        self._signed: Final = None if signed is None else signed.take
        self._permit: Final = None if signed is None else signed.permit
        self._hosts: dict[Connection, tuple[bytes, int]] = {}
        self._is_flush_scheduled = False
        self._runs: list[tuple[Connection, int]] = []
        self.batch = new_batch()
        """The sends of the present pass."""
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
        sends follow when the pass is appended, at the end of this turn of the loop. Large replies are written here, and
        not returned.
        """
        gate, flow = self._gate, self._flow
        refusal = gate.write_refusal or gate.client_send_refusal
        if refusal is None and (connection.is_backlogged or not flow.is_quiet):
            refusal = flow.refusal(connection, data)
        if refusal is None and self.ack_gate.count >= self.ack_gate.sends_max:
            refusal = ANSWERS_FULL
        self.refusal = refusal
        replies: list[bytes] = []
        position = 0
        try:
            compiled: Any = None if isinstance(self.batch, SendBatch) else self.batch
            if (
                compiled is not None
                and refusal is None
                and (self._prefix is SEND_V2_PREFIX or self._permit is not None)
            ):  # all that is needed for a read that has only plain sends, the usual one
                host, host_flag = self._hosts.get(connection) or self.host_and_flag(connection)
                position = compiled.take(
                    data, 0, host, host_flag, self._routes, self._total_max, self.body_bytes_max, self._permit
                )
                if position:
                    connection.is_authenticated = True  # without access control it already is
            if position < len(data):
                position = self._take_frames(data, position, connection, other, replies)
            if 4 <= len(data) - position < _HEAD_BYTES:  # an invalid length closes the connection: answer first
                check_frame_head(int.from_bytes(data[position : position + 4], "big"), 0, self._limits)
        except RemoteProtocolError:
            self.flush_for(connection)
            connection.send(b"".join(replies))
            raise
        finally:
            if self.batch:  # in any case, so that no draft is counted to the next connection's run
                self._end_run(connection)
                if not self._is_flush_scheduled:
                    self._is_flush_scheduled = True
                    self._loop.call_soon(self._flush_turn)
        if len(replies) > 1 and max(map(len, replies)) > JOINED_BYTES_MAX:
            connection.send(*replies)
            return position, b""
        return position, b"".join(replies)

    def _take_frames(
        self, data: bytes, position: int, connection: Connection, other: FrameHandler, replies: list[bytes]
    ) -> int:
        """Handle frames from `position` on in the hot loop; return the end of the last frame that was handled.

        One long function on purpose: in Python, every line runs for each message.
        """
        end, reply_bytes = len(data), 0
        total_max, body_bytes_max = self._total_max, self.body_bytes_max
        header_bytes_max = self._limits.header_bytes_max
        routes, by_topic = self._routes, self._routes.by_topic
        host, host_flag = self._hosts.get(connection) or self.host_and_flag(connection)
        # Refused sends take the slow path, which answers them.
        prefix = self._prefix if self.refusal is None else NEVER_A_PREFIX
        is_fast_path_open = prefix is SEND_V2_PREFIX
        batch = self.batch
        drafts: list[Draft] = []
        answers: list[Answer] = []
        compiled: Any = None
        if isinstance(batch, SendBatch):
            drafts, answers = batch.drafts, batch.answers
        else:
            prefix = NEVER_A_PREFIX
            if is_fast_path_open or (self._permit is not None and self.refusal is None):
                compiled = batch
        while True:
            if compiled is not None and position:  # `handle` has tried it with the first frame
                start = position
                position = compiled.take(
                    data, position, host, host_flag, routes, total_max, body_bytes_max, self._permit
                )
                if position > start:
                    connection.is_authenticated = True
            if end - position < _HEAD_BYTES:
                break
            total, type_and_header = _unpack_head(data, position)
            header_bytes = type_and_header & HEADER_LENGTH_MASK
            if (
                total > total_max
                or header_bytes + 4 > total
                or header_bytes > header_bytes_max
                or type_and_header >= UNKNOWN_KIND
            ):
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
            elif (
                is_fast_path_open
                and not header.startswith(PULL_PREFIX)
                and self._take_unusual_send(type_and_header >> 24, header, data[header_end:frame_end], host, host_flag)
            ):
                continue
            body = data[header_end:frame_end]
            reply = self._handle_other(type_and_header, header, body, connection, other)
            if reply:
                if reply is UNHANDLED:  # the connection is paused, and delivers the frame again later
                    position = header_end - header_bytes - _HEAD_BYTES
                    break
                replies += reply
                reply_bytes += sum(map(len, reply))
                if reply_bytes > PASS_REPLY_BYTES_MAX:
                    break
            if self.batch is not batch:  # the request had to see the sends before it, which are appended now
                batch = self.batch
                if isinstance(batch, SendBatch):
                    drafts, answers = batch.drafts, batch.answers
                elif compiled is not None:
                    compiled = batch
        return position

    def _handle_other(
        self, type_and_header: int, header: bytes, body: bytes, connection: Connection, other: FrameHandler
    ) -> Parts | None:
        """Handle a frame that is no plain send, or one that must be authenticated first; return its answer."""
        signed = self._signed
        if signed is not None and type_and_header <= PLAIN_HEADER_BYTES_MAX and header.startswith(SEND_V2_PREFIX):
            host, host_flag = self.host_and_flag(connection)
            if signed(header, body, host, host_flag):
                connection.is_authenticated = True
                return None
        return other(Frame(type_and_header >> 24, header, body), connection)

    def _take_unusual_send(self, serialization: int, header: bytes, body: bytes, host: bytes, host_flag: int) -> bool:
        """Put a plain send of any other form into the pass. False leaves it to the slow path."""
        request = decode_any_send(serialization, header, self._limits)
        if request is None:
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
        properties = self._routes.encode_properties(route, fields.properties or "")
        if properties is None:
            return False
        data, unique, tags_code, keys, is_waiting_for_store = properties
        queue_id = fields.queue_id
        slot = route.slots[queue_id] or self._routes.create_slot(route, queue_id)
        template = NO_ANSWER if request.flag & FLAG_ONEWAY else slot.reply_template
        self.batch.add(
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
            ),
            (template, unique, request.opaque),
            is_waiting_for_store,
        )
        return True

    def flush_for(self, connection: Connection) -> None:
        """Append the pass now, since the next request of `connection` must see its own sends."""
        if self.batch:
            self._end_run(connection)
            self.flush()

    def flush(self) -> None:
        """Append the pass, and answer its sends or hold their answers. If the store refuses, it stores none of them."""
        batch = self.batch
        if not batch:
            return
        runs, self._runs, self.batch = self._runs, [], new_batch()
        began = self._loop.time()
        self._flow.begin_append(began)
        try:
            physical_offsets, queue_offsets = self._store.append(batch.drafts)
        except Exception as error:  # noqa: BLE001 - every sender of the pass must get an answer
            self._stats.count_put_failures(len(batch))
            self._refuse(batch, runs, error)
            return
        batch.set_offsets(physical_offsets, queue_offsets)
        elapsed_s = self._loop.time() - began
        self._flow.end_append(elapsed_s)
        self._stats.times.record(elapsed_s, len(batch))
        self._stats.count_put(len(batch), self._store)
        if self.ack_gate.must_wait():
            self._hold(batch, runs)
            return
        for (connection, _), (replies, _) in zip(runs, batch.encode_answers(runs, True, True), strict=True):
            if replies:
                connection.send(replies)

    def _hold(self, batch: Batch, runs: list[tuple[Connection, int]]) -> None:
        """Hold the answers of an appended pass, except those whose producers do not want to wait."""
        if batch.has_impatient:
            self._store.note_answered()
            for (connection, _), (at_once, _) in zip(runs, batch.encode_answers(runs, False, True), strict=True):
                if at_once:
                    connection.send(at_once)
        held = [
            (connection, replies, count)
            for (connection, _), (replies, count) in zip(runs, batch.encode_answers(runs, True, False), strict=True)
            if replies
        ]
        if held:
            self.ack_gate.hold(held, self._store.log.wrote)

    def _flush_turn(self) -> None:
        self._is_flush_scheduled = False
        self.flush()

    def _end_run(self, connection: Connection) -> None:
        end = len(self.batch)
        if not self._runs or self._runs[-1][1] != end:
            self._runs.append((connection, end))

    def _refuse(self, batch: Batch, runs: list[tuple[Connection, int]], error: Exception) -> None:
        code, remark, _ = refusal = store_refusal(error)
        answers = batch.answers
        self._stats.refusals.count(refusal, len(answers))
        start = 0
        for connection, end in runs:
            refused = [answer for answer in answers[start:end] if answer[0]]
            replies = [Command(code=code, opaque=answer[2], flag=1, remark=remark).encode() for answer in refused]
            connection.send(b"".join(replies))
            start = end
