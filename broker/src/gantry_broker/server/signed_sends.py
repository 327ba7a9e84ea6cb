"""Plain sends while access control is on: who sends, may they, and into the pass, on primitives.

With access control off nobody comes here, and `send_path` is as it is without. With it on the short way there is shut,
and each frame is looked at here first: the usual message (code 310, JSON, signed as RocketMQ's clients sign, a known
topic, a known shape of properties) is checked and put into the pass at once. Anything else is left to the readable
path, a wrong signature included: that path asks the guard, which says no in words. So a mistake here may cost time, but
lets nobody in: a message enters the pass only behind a right signature and a permission.

What is signed is built from the very texts that the message is made of. A field that is not known here sends the frame
the long way, since it would be signed, too. All fields together in the order of their names are what v1 signs:

    AccessKey  SecurityToken  a b c d e f g h i j k l m n  body
"""

from hmac import compare_digest
from typing import Final, final

import msgspec

from gantry_access import Guard
from gantry_broker.server.send_path import (
    CLEARED_FLAGS,
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    NO_ANSWER,
    SendPath,
)
from gantry_broker.server.send_routes import (
    UNIQUE_END,
    UNIQUE_PREFIX,
    UNIQUE_PREFIX_BYTES,
    UNIQUE_START,
    SendRoute,
    SendRoutes,
)
from gantry_remoting import Connection
from gantry_wire.commands.fields import Int32
from gantry_wire.commands.send import SendMessageV2

INT32_END: Final = 1 << 31
INT64_END: Final = 1 << 63
NUMBER_CHARACTERS_MAX: Final = 64
"""Of a message's four numbers together. Only numbers from 0 on as Java writes them are taken here."""


class SignedFields(
    msgspec.Struct,
    kw_only=True,
    gc=False,
    forbid_unknown_fields=True,
    rename={
        "access_key": "AccessKey",
        "signature": "Signature",
        "token": "SecurityToken",
        **{info.name: info.encode_name for info in msgspec.structs.fields(SendMessageV2)},
    },
):
    """The fields of a signed send as the texts that are signed, those of `SendMessageV2` under its names."""

    access_key: str
    signature: str
    token: str = ""
    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: str
    queue_id: str
    sys_flag: str
    born_timestamp: str
    flag: str
    properties: str
    reconsume_times: str = ""
    unit_mode: str = ""
    max_reconsume_times: str = ""
    batch: str = ""
    broker_name: str = ""


class SignedHeader(msgspec.Struct, kw_only=True, gc=False):
    """The header of a signed JSON send, decoded in one step. What stands beside the fields is not signed."""

    opaque: Int32
    fields: SignedFields = msgspec.field(name="extFields")
    flag: int = 0


_decode: Final = msgspec.json.Decoder(SignedHeader).decode


@final
class SignedSends:
    """The short way of signed sends. Owned by the event loop."""

    def __init__(self, guard: Guard, path: SendPath, routes: SendRoutes) -> None:
        self._guard = guard
        self._path = path
        self._routes = routes
        self._is_open = not guard.is_strict

    def take(self, header: bytes, body: bytes, connection: Connection) -> bool:
        """Put a plain send into the pass, if it is one whose sender may. False leaves it to the readable path."""
        if not self._is_open or self._path.refusal is not None or not 0 < len(body) <= self._path.body_bytes_max:
            return False
        try:
            request = _decode(header)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        route = self._routes.by_topic.get(request.fields.topic)
        if route is None or request.flag & FLAG_RESPONSE or not self._is_permitted(request.fields, body):
            return False
        return self._put(request, route, body, connection)

    def _is_permitted(self, fields: SignedFields, body: bytes) -> bool:
        """Whether an account that may publish to the topic has signed this."""
        one = fields
        account = self._guard.file.accounts.by_key.get(one.access_key)
        if account is None or not account.may_publish(one.topic):
            return False
        # By the order of their names on the wire: AccessKey, SecurityToken, a to n.
        text = (
            f"{one.access_key}{one.token}{one.producer_group}{one.topic}{one.default_topic}"
            f"{one.default_topic_queue_nums}{one.queue_id}{one.sys_flag}{one.born_timestamp}{one.flag}{one.properties}"
            f"{one.reconsume_times}{one.unit_mode}{one.max_reconsume_times}{one.batch}{one.broker_name}"
        )
        made = account.keyed.signature(text.encode("utf-8", "replace") + body)
        return compare_digest(made, one.signature.encode("utf-8", "replace"))

    def _put(self, request: SignedHeader, route: SendRoute, body: bytes, connection: Connection) -> bool:
        """What `SendPath` does with a plain send: its conditions, its draft, its answer."""
        fields = request.fields
        text, batch, again = fields.properties, fields.batch, fields.reconsume_times
        if text[:UNIQUE_START] != UNIQUE_PREFIX or (batch and batch != "false") or (again and again != "0"):
            return False  # a batch, or a message that a consumer could not consume, or one with no id of its own
        digits = f"{fields.queue_id}{fields.sys_flag}{fields.born_timestamp}{fields.flag}"
        if not digits.isascii() or not digits.isdigit() or len(digits) > NUMBER_CHARACTERS_MAX:
            return False
        try:
            queue_id, sys_flag = int(fields.queue_id), int(fields.sys_flag)
            born_ms, flag = int(fields.born_timestamp), int(fields.flag)
        except ValueError:  # one of them is empty
            return False
        if queue_id >= len(route.slots) or sys_flag >= INT32_END or born_ms >= INT64_END or flag >= INT32_END:
            return False
        key, tail = text[UNIQUE_START:UNIQUE_END], text[UNIQUE_END:]
        unique = key.encode("utf-8", "replace")
        shape = route.shapes.get(tail) or route.learn(tail)
        if shape is None or len(unique) != 32 or not unique.isalnum():
            return False
        slot = route.slots[queue_id] or self._routes.slot(route, queue_id)
        host, host_flag = self._path.host_and_flag(connection)
        self._path.drafts.append(
            (  # type: ignore[arg-type]  # a plain tuple of Draft's fields: half the cost
                slot.queue,
                body,
                UNIQUE_PREFIX_BYTES + unique + shape.tail,
                sys_flag & ~CLEARED_FLAGS | host_flag,
                flag,
                born_ms,
                host,
                0,
                0,
                shape.tags_code,
                0,
                (key,),
            )
        )
        template = NO_ANSWER if request.flag & FLAG_ONEWAY else slot.template
        self._path.answers.append((template, unique, request.opaque))
        return True
