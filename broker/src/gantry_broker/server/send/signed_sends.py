"""Plain sends while access control is on: who sends, may they, and into the pass, on primitives.

With access control off nobody comes here, and `send_path` is as it is without. With it on the short way there is shut,
and each frame is looked at here first: the usual message (code 310, JSON, signed as RocketMQ's clients sign, a known
topic, plain properties) is checked and put into the pass at once. Anything else is left to the readable
path, a wrong signature included: that path asks the guard, which says no in words. So a mistake here may cost time, but
lets nobody in: a message enters the pass only behind a right signature and a permission.

What is signed is built from the very texts that the message is made of. A field that is not known here sends the frame
the long way, since it would be signed, too. All fields together in the order of their names are what v1 signs:

    AccessKey  SecurityToken  a b c d e f g h i j k l m n  body
"""

from hmac import compare_digest
from typing import final

import msgspec

from gantry_access import Guard
from gantry_broker.server.core.send_routes import SendRoute, SendRoutes
from gantry_broker.server.send.headers import SignedFields, SignedHeader, decode_signed
from gantry_broker.server.send.send_path import FLAG_RESPONSE, SendPath


@final
class SignedSends:
    """The short way of signed sends. Owned by the event loop."""

    def __init__(self, guard: Guard, path: SendPath, routes: SendRoutes) -> None:
        self._guard = guard
        self._path = path
        self._routes = routes
        self._is_open = not guard.is_strict

    def take(self, header: bytes, body: bytes, host: bytes, host_flag: int) -> bool:
        """Put a plain send into the pass, if it is one whose sender may. False leaves it to the readable path.

        ``host`` and ``host_flag`` are those of its connection.
        """
        if not self._is_open or self._path.refusal is not None or not 0 < len(body) <= self._path.body_bytes_max:
            return False
        try:
            request = decode_signed(header)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        route = self._routes.by_topic.get(request.fields.topic)
        if route is None or request.flag & FLAG_RESPONSE or not self._is_permitted(request.fields, body):
            return False
        return self._put(request, route, body, host, host_flag)

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
        made = account.keyed.signature(text.encode() + body)
        return compare_digest(made, one.signature.encode("utf-8", "replace"))

    def _put(self, request: SignedHeader, route: SendRoute, body: bytes, host: bytes, host_flag: int) -> bool:
        """What `SendPath` does with a plain send: its conditions, then its second tier."""
        fields = request.fields
        batch, again = fields.batch, fields.reconsume_times
        if (batch and batch != "false") or (again and again != "0"):
            return False  # a batch, or a message that a consumer could not consume
        if fields.queue_id >= len(route.slots):
            return False
        return self._path.put_any(request, route, body, host, host_flag)
