"""The oracle of a fuzz run: which replies a server must send for a stream of bytes, and whether it must close.

The oracle reads the same bytes as the server, with the wire's own reader, which has tests of its own. The rule is
simple: every request that parses and wants a reply gets exactly one, nothing else is answered, and the first bytes that
break the protocol end the connection and nothing more.
"""

from collections import Counter
from typing import Final, final

import msgspec

from gantry_wire import RequestCode
from gantry_wire.commands.fields import Int32
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.frame import Frame, FrameReader
from gantry_wire.header import FLAG_ONEWAY, FLAG_RESPONSE, Header, decode_header

PULLS: Final = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})
FORWARDED_TO_CONSUMERS: Final = frozenset(
    {
        RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY,
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    }
)  # fmt: skip
"""Passed on to members of a group, of which none here answers: the broker waits for them."""
POPS: Final = frozenset({RequestCode.POP_MESSAGE, RequestCode.NOTIFICATION})
"""Held for `pollTime` while there are no messages."""
ANSWERED_LATER: Final = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.DELETE_SUBSCRIPTIONGROUP, RequestCode.PUT_KV_CONFIG, RequestCode.DELETE_KV_CONFIG,
        RequestCode.UPDATE_NAMESRV_CONFIG, RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, *PULLS,
        RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2, RequestCode.END_TRANSACTION,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RequestCode.CLONE_GROUP_OFFSET,
        RequestCode.GET_BROKER_CONSUME_STATS, RequestCode.GET_CONSUME_STATS, RequestCode.QUERY_CONSUME_TIME_SPAN,
        RequestCode.GET_TOPIC_STATS_INFO, RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, *FORWARDED_TO_CONSUMERS,
        *POPS, RequestCode.PEEK_MESSAGE, RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME, RequestCode.QUERY_ASSIGNMENT, RequestCode.SET_MESSAGE_REQUEST_MODE,
        RequestCode.RECALL_MESSAGE, RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_UPDATE_USER,
        RequestCode.AUTH_DELETE_USER, RequestCode.AUTH_CREATE_ACL, RequestCode.AUTH_UPDATE_ACL,
        RequestCode.AUTH_DELETE_ACL,
    }
)  # fmt: skip
"""Answered after a write, an event or a turn of other requests: perhaps after the connection has ended."""
TRANSACTION_ENDS: Final = ("8", "12")
"""Values of `commitOrRollback` that end a transaction: commit and rollback."""
SHORT_SUSPENSIONS: Final = ("0", "30")
"""Values of `suspendTimeoutMillis` with which a pull is answered soon."""
SEND_PREFIXES: Final = (b'{"code":310,', b'{"code":10,')
"""How the headers begin that a broker may read on the fast path of a send."""


class SendHeader(msgspec.Struct, gc=False):
    """The header fields that the broker's fast path for sends needs."""

    opaque: Int32
    extFields: dict[str, object]


_decode_send: Final = msgspec.json.Decoder(SendHeader, strict=False).decode


@final
class DueReplies:
    """The replies that are due on one connection, updated with each frame that is sent."""

    def __init__(self) -> None:
        self._reader = FrameReader()
        self.answers: Counter[int] = Counter()
        """How many answers are due for each opaque (the id of a request)."""
        self.held: Counter[int] = Counter()
        """Of these, those that may not come while the connection is open, such as answers to held pulls."""
        self.late: Counter[int] = Counter()
        """Of the answers, those that may be missing when the server closes the connection after a bad frame."""
        self.asked: dict[int, int] = {}
        """The request code of each opaque."""
        self.parsed: Counter[int] = Counter()
        """Requests that parse, by code."""
        self.without_reply = 0
        """Frames that parse and need no reply: one-way requests, and replies without a request."""
        self.deleted_topics: set[str] = set()
        """Topics whose deletion was requested."""
        self.must_close = False
        """Whether the last frame breaks the protocol, so that the server must close the connection."""
        self.may_stay_open = False
        """The last frame breaks the protocol in a key that the fast path of a send does not read."""
        self.optional: Counter[int] = Counter()
        """The answer that such a frame may get."""

    def __repr__(self) -> str:
        return f"<DueReplies {self.answers.total()} without_reply={self.without_reply} must_close={self.must_close}>"

    @property
    def waits_for_more(self) -> bool:
        """Return whether the bytes so far end inside a frame."""
        return self._reader.buffered_bytes > 0

    def add(self, data: bytes) -> None:
        """Add the next bytes of the stream."""
        try:
            for frame in self._reader.feed(data):
                try:
                    self._request(decode_header(frame.header, frame.serialization))
                except RemoteProtocolError:
                    self.may_stay_open = self._is_short_send(frame)
                    raise
        except RemoteProtocolError:
            self.must_close = True

    def _is_short_send(self, frame: Frame) -> bool:
        """Return whether the fast path of a send, which reads fewer keys, may answer this frame; count the answer."""
        if frame.serialization != 0 or not frame.header.startswith(SEND_PREFIXES):
            return False
        try:
            opaque = _decode_send(frame.header).opaque
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        self.optional[opaque] += 1
        return True

    def _request(self, header: Header) -> None:
        """Count the reply that this request needs, if it needs one."""
        if header.flag & FLAG_RESPONSE:
            self.without_reply += 1
            return
        self.parsed[header.code] += 1
        if header.code == RequestCode.DELETE_TOPIC_IN_BROKER and "topic" in header.ext:
            self.deleted_topics.add(header.ext["topic"])
        if header.flag & FLAG_ONEWAY:
            self.without_reply += 1
            return
        self.answers[header.opaque] += 1
        self.asked[header.opaque] = header.code
        if header.code in ANSWERED_LATER:
            self.late[header.opaque] += 1
        is_long = header.ext.get("suspendTimeoutMillis", "0") not in SHORT_SUSPENSIONS
        is_undecided = (
            header.ext.get("commitOrRollback") not in TRANSACTION_ENDS
        )  # which is answered by nothing, as in RocketMQ
        may_wait = (
            header.code in FORWARDED_TO_CONSUMERS
            or (header.code in PULLS and is_long)
            or (header.code in POPS and header.ext.get("pollTime", "0") != "0")
            or (header.code == RequestCode.END_TRANSACTION and is_undecided)
        )
        if may_wait:
            self.held[header.opaque] += 1
