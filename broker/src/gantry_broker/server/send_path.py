"""The way of a message from the socket into the log: all sends of one read in one pass.

    bytes of one read -> frames -> drafts -> ONE append -> replies -> ONE write

The usual message (code 310, JSON, a known topic, a known shape of properties) is handled here on primitives. Anything
out of the ordinary goes through `handlers.send`, which reads the same request in words and puts its draft into the
same pass, so that order within a connection is the order of its frames. Any frame that is no send ends the pass first.

The interface is `handle(data, connection) -> (consumed, replies)`; a compiled twin can take its place.
"""

import logging
from collections.abc import Callable
from typing import Final, final

import msgspec

from gantry_broker.errors import BrokerError, LogReadOnly, MessageTooLarge, StoreFull
from gantry_broker.server.flow_control import FlowControl, Refusal
from gantry_broker.server.send_routes import UNIQUE_END, UNIQUE_PREFIX, UNIQUE_PREFIX_BYTES, UNIQUE_START, SendRoutes
from gantry_broker.server.stats import BrokerStats
from gantry_broker.store.draft import Draft
from gantry_broker.store.message_store import MessageStore
from gantry_remoting import Connection
from gantry_wire import Command, ResponseCode
from gantry_wire.commands.send import SendMessageV2
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.frame import FRAME_HEAD, Frame, check_frame_head
from gantry_wire.limits import WireLimits
from gantry_wire.message import encode_host

log = logging.getLogger(__name__)

SEND_V2_PREFIX: Final = b'{"code":310,'
FLAG_ONEWAY: Final = 2
NO_ANSWER: Final = b""
_HEAD_BYTES: Final = FRAME_HEAD.size
_HEADS: Final = [FRAME_HEAD.pack(4 + length, length) for length in range(2048)]
"""Frame heads of short JSON replies without a body, by header length."""

Answer = tuple[bytes, bytes, int]
"""(reply template, unique id, opaque); the template is NO_ANSWER for a oneway send."""


class SendV2Header(msgspec.Struct, kw_only=True, gc=False):
    """The header of a JSON send, decoded in one step."""

    opaque: int
    fields: SendMessageV2 = msgspec.field(name="extFields")
    flag: int = 0


_decode_send: Final = msgspec.json.Decoder(SendV2Header, strict=False).decode

OtherFrame = Callable[[Frame, Connection, "SendPass"], bytes | None]


@final
class SendPass:
    """The sends of one read that are not appended yet, in order, with what to answer."""

    __slots__ = ("_owner", "answers", "drafts", "refusal")

    def __init__(self, owner: "SendPath", refusal: Refusal | None) -> None:
        self._owner = owner
        self.refusal: Final = refusal
        self.drafts: list[Draft] = []
        self.answers: list[Answer] = []

    def flush(self) -> bytes:
        """Append what was gathered; the replies to it."""
        if not self.drafts:
            return b""
        replies = self._owner.append(self.drafts, self.answers)
        self.drafts, self.answers = [], []
        return replies


@final
class SendPath:
    """Handles the bytes of connections. Owned by the event loop."""

    def __init__(
        self, store: MessageStore, routes: SendRoutes, flow: FlowControl, stats: BrokerStats, limits: WireLimits
    ) -> None:
        self._store = store
        self._routes = routes
        self._flow = flow
        self._stats = stats
        self._limits = limits
        self._hosts: dict[Connection, bytes] = {}
        self._body_bytes_max = 0
        self.now: Callable[[], float] = lambda: 0.0

    def configure(self, *, body_bytes_max: int, now: Callable[[], float]) -> None:
        """What is known only when the loop runs."""
        self._body_bytes_max = body_bytes_max
        self.now = now

    def host_of(self, connection: Connection) -> bytes:
        """The peer's address as records hold it."""
        host = self._hosts.get(connection)
        if host is None:
            host = self._hosts[connection] = encode_host(*connection.peer)
        return host

    def forget(self, connection: Connection) -> None:
        self._hosts.pop(connection, None)

    def handle(self, data: bytes, connection: Connection, other: OtherFrame) -> tuple[int, bytes]:
        """Handle every whole frame at the start of `data`. Frames that are no plain send go to `other`."""
        position, end = 0, len(data)
        current = SendPass(self, self._flow.refusal(self.now(), 0))
        replies: list[bytes] = []
        try:
            while end - position >= _HEAD_BYTES:
                total, type_and_header = FRAME_HEAD.unpack_from(data, position)
                check_frame_head(total, type_and_header, self._limits)
                frame_end = position + 4 + total
                if frame_end > end:
                    break
                header_end = position + _HEAD_BYTES + (type_and_header & 0xFFFFFF)
                header = data[position + _HEAD_BYTES : header_end]
                body = data[header_end:frame_end]
                position = frame_end
                if header.startswith(SEND_V2_PREFIX) and self._take_plain(header, body, connection, current):
                    continue
                reply = other(Frame(type_and_header >> 24, header, body), connection, current)
                if reply:
                    replies.append(reply)
            replies.append(current.flush())
        except RemoteProtocolError:
            replies.append(current.flush())
            connection.send(b"".join(replies))
            raise
        return position, b"".join(replies)

    def _take_plain(self, header: bytes, body: bytes, connection: Connection, current: SendPass) -> bool:
        """Put a usual send into the pass; False when it needs the readable path. Keep this function flat."""
        try:
            request = _decode_send(header)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False
        fields = request.fields
        route = self._routes.by_topic.get(fields.topic)
        text = fields.properties
        if route is None or text is None or fields.batch or fields.reconsume_times or current.refusal is not None:
            return False
        slots = route.slots
        queue_id = fields.queue_id
        if not 0 <= queue_id < len(slots) or text[:UNIQUE_START] != UNIQUE_PREFIX:
            return False
        tail = text[UNIQUE_END:]
        shape = route.shapes.get(tail) or route.learn(tail)
        if shape is None or not 0 < len(body) <= self._body_bytes_max:
            return False
        unique_text = text[UNIQUE_START:UNIQUE_END]
        unique = unique_text.encode()
        if len(unique) != 32 or not unique.isalnum():
            return False
        slot = slots[queue_id]
        host = self._hosts.get(connection) or self.host_of(connection)
        current.drafts.append(
            (  # type: ignore[arg-type]  # a plain tuple of Draft's fields: half the cost of the named one
                slot.queue,
                body,
                UNIQUE_PREFIX_BYTES + unique + shape.tail,
                fields.sys_flag & ~0x3C | (0x10 if len(host) == 20 else 0),
                fields.flag,
                fields.born_timestamp,
                host,
                0,
                0,
                shape.tags_code,
                0,
                (unique_text,),
            )
        )
        current.answers.append((NO_ANSWER if request.flag & FLAG_ONEWAY else slot.template, unique, request.opaque))
        return True

    def append(self, drafts: list[Draft], answers: list[Answer]) -> bytes:
        """One append, and the replies in order. A store that refuses stores nothing of the pass."""
        began = self.now()
        try:
            physical_offsets, queue_offsets = self._store.append(drafts)
        except BrokerError as error:
            return b"".join(refuse(answer, error) for answer in answers if answer[0])
        self._flow.appended(self.now() - began)
        self._stats.put(len(drafts), self._store)
        parts: list[bytes] = []
        for (template, unique, opaque), physical, queue_offset in zip(
            answers, physical_offsets, queue_offsets, strict=True
        ):
            if template:
                reply = template % (physical, queue_offset, unique, opaque)
                parts += (_HEADS[len(reply)], reply)
        return b"".join(parts)


def store_refusal(error: BrokerError) -> tuple[ResponseCode, str]:
    """The code and text that tell a producer what its message ran into."""
    if isinstance(error, MessageTooLarge):
        return ResponseCode.MESSAGE_ILLEGAL, str(error)
    if isinstance(error, StoreFull):
        return ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now, the disk is full: {error}"
    if isinstance(error, LogReadOnly):
        return ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now, the log is read-only: {error}"
    log.error("append failed", extra={"reason": str(error)})
    return ResponseCode.SYSTEM_ERROR, f"the store failed: {error}"


def refuse(answer: Answer, error: BrokerError) -> bytes:
    code, remark = store_refusal(error)
    return Command(code=code, opaque=answer[2], flag=1, remark=remark).encode()
