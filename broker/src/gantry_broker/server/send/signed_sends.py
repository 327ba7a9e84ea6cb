"""The fast path of plain sends with access control on: verifies signature and permission without a `Command`.

With access control off this module is not used. With it on, the fast path in `send_path` is switched off, and each JSON
frame of code 310 is examined here first: the usual message (signed as RocketMQ's clients sign, a known topic, plain
properties) is verified and put at once into the pass, the sends of one turn of the event loop that are appended
together. All other sends are left to the slow path, also those with a wrong signature: that path asks the guard, which
refuses with a text. So an error here may cost time, but admits no client: from here a message enters the pass only with
a valid signature and a permission.

The signed content is built from the texts that the message consists of. A frame with an unknown field takes the
slow path, since the field would be signed, too. Version 1 of the signature, that of RocketMQ's clients, covers all
fields in the order of their names:

    AccessKey  SecurityToken  a b c d e f g h i j k l m n  body
"""

from collections.abc import Callable
from hmac import compare_digest
from typing import final

import msgspec

from gantry_access import Guard
from gantry_broker.server.core.send_routes import SendRoute, SendRoutes
from gantry_broker.server.send.headers import SignedFields, SignedHeader, decode_signed
from gantry_broker.server.send.send_path import SendPath
from gantry_wire.header import FLAG_RESPONSE


@final
class SignedSends:
    """The fast path of signed sends. Owned by the event loop."""

    def __init__(self, guard: Guard, send_path: SendPath, routes: SendRoutes) -> None:
        self._guard = guard
        self._send_path = send_path
        self._routes = routes
        self._is_enabled = not guard.is_strict
        """Strictly signed sends take the slow path."""

    @property
    def permit(self) -> Callable[[str, str], Callable[[bytes], bytes] | None] | None:
        """The check for a compiled batch: `_find_signer`. None: all signed sends take the slow path."""
        return self._find_signer if self._is_enabled else None

    def take(self, header: bytes, body: bytes, host: bytes, host_flag: int) -> bool:
        """Put a plain send into the pass if its sender is permitted. False leaves it to the slow path.

        ``host`` and ``host_flag`` are those of its connection.
        """
        send_path = self._send_path
        if not self._is_enabled or send_path.refusal is not None or not 0 < len(body) <= send_path.body_bytes_max:
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
        """Whether the send is signed by an account that may publish to the topic."""
        send = fields
        sign = self._find_signer(send.access_key, send.topic)
        if sign is None:
            return False
        # In the order of their names on the wire: AccessKey, SecurityToken, a to n.
        text = (
            f"{send.access_key}{send.token}{send.producer_group}{send.topic}{send.default_topic}"
            f"{send.default_topic_queue_nums}{send.queue_id}{send.sys_flag}{send.born_timestamp}{send.flag}"
            f"{send.properties}{send.reconsume_times}{send.unit_mode}{send.max_reconsume_times}{send.batch}"
            f"{send.broker_name}"
        )
        return compare_digest(sign(text.encode() + body), send.signature.encode("utf-8", "replace"))

    def _find_signer(self, access_key: str, topic: str) -> Callable[[bytes], bytes] | None:
        """Return the function that makes signatures with the account's secret; None if it may not publish to the topic.

        A compiled batch keeps the result for further sends of the same account in the same read.
        """
        account = self._guard.source.accounts.by_key.get(access_key)
        return account.keyed.signature if account is not None and account.may_publish(topic) else None

    def _put(self, request: SignedHeader, route: SendRoute, body: bytes, host: bytes, host_flag: int) -> bool:
        """Check the conditions of `SendPath` for a plain send, and call its `put_send`, which takes any properties."""
        fields = request.fields
        batch, again = fields.batch, fields.reconsume_times
        if (batch and batch != "false") or (again and again != "0"):
            return False  # a batch, or a consumer's retry
        if fields.queue_id >= len(route.slots):
            return False
        return self._send_path.put_send(request, route, body, host, host_flag)
