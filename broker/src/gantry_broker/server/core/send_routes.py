"""The data that the send path needs of a topic, computed once and cached until the topic changes.

Producers of a topic send few shapes of properties: the same names and values except for the unique id in front, and the
keys before it. A shape holds their stored form, with the properties that the broker adds, and the hash of the tags, so
that the usual message costs one dictionary look-up instead of a parse. A shape is cached only if none of its properties
needs special treatment; the number of shapes is limited.

Properties without such a shape (a unique id elsewhere, of another form or missing; keys; properties that a forwarder
copied) are parsed once by `SendRoutes.stored_properties`, which returns the same bytes as the slow path.
"""

import random
import struct
from collections.abc import Sequence
from typing import Any, Final, final

import msgspec

from gantry_broker.ports import Clock
from gantry_broker.server.core.broker_properties import OWNED_PROPERTIES, remove_broker_properties
from gantry_broker.store.consume_queue import ConsumeQueue
from gantry_broker.store.message_store import MessageStore
from gantry_speedups import native
from gantry_wire import properties as keys
from gantry_wire.codes import PROTOCOL_VERSION
from gantry_wire.commands.admin import TopicConfig
from gantry_wire.hashing import tags_code
from gantry_wire.limits import PROPERTIES_BYTES_MAX
from gantry_wire.names import is_retry_or_dead_letter
from gantry_wire.unique_id import UniqueIds

SHAPES_MAX: Final = 1024
"""Limit of the shapes that one topic caches."""
SHAPE_BYTES_MAX: Final = 2048
"""Longer properties are not cached as a shape."""
UNIQUE_PREFIX: Final = f"{keys.UNIQUE_KEY}{keys.KEY_END}"
"""How properties begin that have the unique id in front."""
KEYS_PREFIX: Final = f"{keys.KEYS}{keys.KEY_END}"
"""How properties begin that have the keys in front, as those of Java's clients do."""
KEYS_START: Final = len(KEYS_PREFIX)
"""Where the text of the keys begins in such properties."""
UNIQUE_PREFIX_BYTES: Final = UNIQUE_PREFIX.encode()
UNIQUE_START: Final = len(UNIQUE_PREFIX)
"""Where the unique id begins in such properties."""
UNIQUE_END: Final = UNIQUE_START + 32
"""Where a unique id of 32 characters ends in such properties."""

SPECIAL_PROPERTIES: Final = frozenset(
    {
        keys.DELAY_LEVEL,
        keys.TRANSACTION_PREPARED,
        keys.TIMER_DELAY_SECONDS,
        keys.TIMER_DELAY_MS,
        keys.TIMER_DELIVER_MS,
        keys.PRIORITY,
        "",
    }
)
"""A message with one of these takes the slow path."""

_CHECKED_PROPERTIES: Final = SPECIAL_PROPERTIES | OWNED_PROPERTIES
"""Properties without any of these can be stored as they came."""


StoredProperties = tuple[bytes, str, int, tuple[str, ...], bool, bool]
"""(encoded properties, unique id, tags code, index keys, whether they have a shape, whether to wait for the store).

Properties have a shape if they begin with a unique id of 32 letters and digits, or with keys and then such an id, are
stored as they came, and contain neither other keys nor `WAIT=false`: then all but keys and id is the same for each
message. A sender that does not wait gets its answer before the message is as durable as the mode promises.
"""

EncodedProperties = tuple[bytes, bytes, int, tuple[str, ...], bool]
"""(encoded properties, unique id as in a JSON string, tags code, index keys, whether to wait for the store)."""


@final
class Shape:
    """Encoded properties without the leading unique id, and the keys before it."""

    __slots__ = ("tags_code", "tail")

    def __init__(self, tail: bytes, code: int) -> None:
        self.tail: Final = tail
        """The stored form of the properties after the unique id."""
        self.tags_code: Final = code


@final
class PlainQueueSlot:
    """A queue of a topic, with the template of the reply to a send into it."""

    __slots__ = ("queue", "reply_template")

    def __init__(self, queue: ConsumeQueue, reply_template: bytes) -> None:
        self.queue: Final = queue
        self.reply_template: Final = reply_template
        """See ``SendRoutes.make_reply_template`` for its fields."""


QueueSlot: type[Any] = PlainQueueSlot if native is None else native.QueueSlot
"""The class of slots that runs: a compiled one also holds what its records need."""


@final
class SendRoute:
    """The route of one topic. `slots` has an entry for every queue, which is filled at the first send to it.

    `slots` is empty for a topic that only the slow path may handle.
    """

    __slots__ = ("shapes", "slots", "topic")

    def __init__(self, topic: str, queue_count: int) -> None:
        self.topic: Final = topic
        self.slots: Final[list[Any | None]] = [None] * queue_count
        """What a send to each queue needs; None until the first send to it."""
        self.shapes: Final[dict[str, Shape]] = {}
        """The cached shapes, by the text of the properties after the unique id."""

    def cache_shape(self, tail: str, shape: Shape) -> None:
        """Cache the shape of properties that end in `tail`, unless it is too long."""
        if len(tail) > SHAPE_BYTES_MAX:
            return
        if len(self.shapes) >= SHAPES_MAX:
            self.shapes.clear()
        self.shapes[tail] = shape


@final
class SendRoutes:
    """The send routes of all topics. Owned by the event loop."""

    def __init__(self, store: MessageStore, *, store_host: bytes, cluster: str, region: str, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._unique_ids = UniqueIds(store_host[:-4], salt=random.getrandbits(32))
        self._host_hex = store_host.hex().upper()
        self._region = region
        self.added_properties = {keys.MESSAGE_REGION: region, keys.TRACE_ON: "true", keys.CLUSTER: cluster}
        """The properties that the broker adds to every message."""
        self.broker_tail = keys.encode_properties(self.added_properties)
        self.by_topic: dict[str, SendRoute] = {}

    def forget(self, topic: str) -> None:
        """Drop the route of a changed topic; the next send computes it again."""
        self.by_topic.pop(topic, None)

    def forget_all(self) -> None:
        """Drop all routes after the log was truncated or replaced: they hold queues that may have been deleted."""
        self.by_topic.clear()

    def create_route(self, config: TopicConfig) -> SendRoute:
        """Create the route of an existing topic."""
        topic = config.topic_name
        count = max(config.write_queue_nums, config.read_queue_nums)
        is_plain = not is_retry_or_dead_letter(topic) and config.topic_filter_type == "SINGLE_TAG"
        route = SendRoute(topic, count if is_plain else 0)
        self.by_topic[topic] = route
        return route

    def next_unique_id(self) -> str:
        """Return a unique id for a message without one."""
        return self._unique_ids.next(self._clock.wall_ms())

    def stored_properties(self, text: str) -> StoredProperties | None:
        """Return the stored form of a plain message's properties; None if only the slow path can determine it.

        Properties are kept as they came if nothing in them must change, and encoded again otherwise.
        """
        parts = (text[:-1] if text.endswith(keys.VALUE_END) else text).split(keys.VALUE_END) if text else []
        try:
            pairs: dict[str, str] = dict([part.split(keys.KEY_END) for part in parts])
        except ValueError:
            return None  # a pair without exactly one separator
        unique = pairs.get(keys.UNIQUE_KEY)
        wait = pairs.get(keys.WAIT_STORE, "true")
        if unique == "":
            return None
        is_waiting_for_store = wait == "true" or wait.lower() != "false"
        added = ""
        if unique is None:
            unique = pairs[keys.UNIQUE_KEY] = self.next_unique_id()
            added = f"{UNIQUE_PREFIX}{unique}{keys.VALUE_END}"
            parts.append(added)
        is_kept = len(pairs) == len(parts)
        if not _CHECKED_PROPERTIES.isdisjoint(pairs):
            if not SPECIAL_PROPERTIES.isdisjoint(pairs):
                return None
            is_kept = is_kept and OWNED_PROPERTIES.isdisjoint(pairs)
        try:
            if is_kept:
                end = "" if not text or text.endswith(keys.VALUE_END) else keys.VALUE_END
                data = f"{text}{end}{added}".encode() + self.broker_tail
            else:
                if len(text.encode()) > PROPERTIES_BYTES_MAX:
                    return None
                remove_broker_properties(pairs)
                data = keys.format_properties({**pairs, **self.added_properties}).encode()
        except UnicodeEncodeError:
            return None
        if len(data) > PROPERTIES_BYTES_MAX:
            return None
        code = tags_code(pairs.get(keys.TAGS))
        text_keys = pairs.get(keys.KEYS)
        index_keys = (unique, *keys.split_keys(text_keys)) if text_keys else (unique,)
        start = text.find(keys.VALUE_END) + 1 if text.startswith(KEYS_PREFIX) else 0
        is_shape = (
            is_kept
            and is_waiting_for_store
            and text.startswith(UNIQUE_PREFIX, start)
            and (start > 0 or text_keys is None)
            and len(unique) == 32
            and unique.encode().isalnum()
        )
        return data, unique, code, index_keys, is_shape, is_waiting_for_store

    def encode_properties(self, route: SendRoute, text: str) -> EncodedProperties | None:
        """Return what a send with the properties ``text`` stores and answers; None if only the slow path knows it.

        Properties with a shape are found in the route, and a new shape is cached there.
        """
        start = text.find(keys.VALUE_END) + 1 if text.startswith(KEYS_PREFIX) else 0
        end = start + UNIQUE_END
        key, tail = text[start + UNIQUE_START : end], text[end:]
        shape = route.shapes.get(tail)
        if (
            shape is not None
            and text.startswith(UNIQUE_PREFIX, start)
            and len(key) == 32
            and key.isascii()
            and key.isalnum()
        ):
            unique = key.encode()
            data = UNIQUE_PREFIX_BYTES + unique + shape.tail
            if not start:
                return data, unique, shape.tags_code, (key,), True
            text_keys = text[KEYS_START : start - 1]
            data = text[:start].encode() + data
            if keys.KEY_END not in text_keys and len(data) <= PROPERTIES_BYTES_MAX:
                return data, unique, shape.tags_code, (key, *keys.split_keys(text_keys)), True
        properties = self.stored_properties(text)
        if properties is None:
            return None
        data, key, code, index_keys, is_shape, is_waiting_for_store = properties
        if is_shape:
            route.cache_shape(tail, Shape(data[len(text[:end].encode()) :], code))
        unique = key.encode() if key.isascii() and key.isalnum() else json_text(key)
        return data, unique, code, index_keys, is_waiting_for_store

    def create_slot(self, route: SendRoute, queue_id: int) -> Any:
        """Create the slot of a queue at the first send to it."""
        slot = QueueSlot(self._store.queues.get_or_create(route.topic, queue_id), self.make_reply_template(queue_id))
        route.slots[queue_id] = slot
        return slot

    def message_ids(self, physical_offsets: Sequence[int]) -> str:
        """Return the offset message ids of the messages of a batch, as the reply to it has them."""
        offsets = struct.pack(f">{len(physical_offsets)}q", *physical_offsets).hex(",", 8).upper()
        return self._host_hex + offsets.replace(",", f",{self._host_hex}")

    def make_reply_template(self, queue_id: int, recall_handle: str = "") -> bytes:
        """Return the template of a successful reply, filled by (physical offset, queue offset, unique id, opaque).

        A timer message has a recall handle, which consists of letters and digits, and of characters without a meaning
        in JSON and in templates.
        """
        handle = f',"recallHandle":"{recall_handle}"' if recall_handle else ""
        return (
            f'{{"code":0,"extFields":{{"MSG_REGION":"{self._region}","TRACE_ON":"true",'
            f'"msgId":"{self._host_hex}%016X","queueId":"{queue_id}","queueOffset":"%d","transactionId":"%b"{handle}}},'
            f'"flag":1,"language":"PYTHON","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":{PROTOCOL_VERSION}}}'
        ).encode()


def json_text(text: str) -> bytes:
    """Return `text` escaped for a JSON string, without the quotes."""
    return msgspec.json.encode(text.encode("utf-8", "replace").decode())[1:-1]
