"""What the send path has to know about a topic, computed once and kept until the topic changes.

Producers of a topic send few shapes of properties: the same names and values but for the unique id in front. A shape
holds what the broker adds and the hash of the tags, so that the usual message costs one dictionary look-up instead of
a parse. A shape is remembered only when nothing in it asks for special treatment, and their number is bounded.

Properties without such a shape (a unique id elsewhere, of another form or missing; keys; what a forwarder copied) are
parsed once by `SendRoutes.stored_properties`, which stores what the readable path would store, byte for byte.
"""

import random
from typing import Final, final

import msgspec

from gantry_broker.ports import Clock
from gantry_broker.store.consume_queue import ConsumeQueue
from gantry_broker.store.message_store import MessageStore
from gantry_wire import properties as names
from gantry_wire.codes import PROTOCOL_VERSION
from gantry_wire.commands.admin import TopicConfig
from gantry_wire.hashing import tags_code
from gantry_wire.limits import PROPERTIES_BYTES_MAX
from gantry_wire.names import is_retry_or_dead_letter
from gantry_wire.unique_id import UniqueIds

SHAPES_MAX: Final = 1024
SHAPE_BYTES_MAX: Final = 2048
UNIQUE_PREFIX: Final = f"{names.UNIQUE_KEY}{names.KEY_END}"
UNIQUE_PREFIX_BYTES: Final = UNIQUE_PREFIX.encode()
UNIQUE_START: Final = len(UNIQUE_PREFIX)
UNIQUE_END: Final = UNIQUE_START + 32

SPECIAL_PROPERTIES: Final = frozenset(
    {
        names.DELAY_LEVEL,
        names.TRANSACTION_PREPARED,
        names.TIMER_DELAY_SECONDS,
        names.TIMER_DELAY_MS,
        names.TIMER_DELIVER_MS,
        "",
    }
)
"""A message with one of these takes the readable path."""

OWNED_PROPERTIES: Final = frozenset(
    {names.POP_CHECKPOINT, names.RECORD_CRC, names.MESSAGE_REGION, names.TRACE_ON, names.CLUSTER}
)
"""The broker removes or overwrites these, so properties with one of them are written again."""

_NOTED: Final = SPECIAL_PROPERTIES | OWNED_PROPERTIES


StoredProperties = tuple[bytes, str, int, tuple[str, ...], bool, bool]
"""(encoded properties, unique id, tags code, index keys, whether they have a shape, whether the sender waits).

They have a shape when another 32 letters and digits as the leading unique id would change nothing else. A sender that
does not wait wants its answer before the message is stored as the mode promises.
"""


@final
class Shape:
    """Properties but for the leading unique id."""

    __slots__ = ("tags_code", "tail")

    def __init__(self, tail: bytes, code: int) -> None:
        self.tail: Final = tail
        self.tags_code: Final = code


@final
class QueueSlot:
    """One queue of a topic with the reply to a send into it, ready but for what differs."""

    __slots__ = ("queue", "template")

    def __init__(self, queue: ConsumeQueue, template: bytes) -> None:
        self.queue: Final = queue
        self.template: Final = template


@final
class SendRoute:
    """One topic. `slots` has a place for every queue, filled when it is first sent to.

    It is empty for topics that only the readable path may handle.
    """

    __slots__ = ("shapes", "slots", "topic")

    def __init__(self, topic: str, queue_count: int) -> None:
        self.topic: Final = topic
        self.slots: Final[list[QueueSlot | None]] = [None] * queue_count
        self.shapes: Final[dict[str, Shape]] = {}

    def learn(self, tail: str, shape: Shape) -> None:
        """Remember the shape of properties that end in `tail`, if it is not too long."""
        if len(tail) > SHAPE_BYTES_MAX:
            return
        if len(self.shapes) >= SHAPES_MAX:
            self.shapes.clear()
        self.shapes[tail] = shape


@final
class SendRoutes:
    """Routes by topic. Owned by the event loop."""

    def __init__(self, store: MessageStore, *, store_host: bytes, cluster: str, region: str, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._unique_ids = UniqueIds(store_host[:-4], salt=random.getrandbits(32))
        self._host_hex = store_host.hex().upper()
        self._region = region
        self.added = {names.MESSAGE_REGION: region, names.TRACE_ON: "true", names.CLUSTER: cluster}
        """Properties that the broker adds to every message."""
        self._broker_tail = names.encode_properties(self.added)
        self.by_topic: dict[str, SendRoute] = {}

    def forget(self, topic: str) -> None:
        """The topic changed; compute anew when it is next sent to."""
        self.by_topic.pop(topic, None)

    def forget_all(self) -> None:
        """Forget every route after the log was cut or replaced: a route holds queues that may have been deleted."""
        self.by_topic.clear()

    def make(self, config: TopicConfig) -> SendRoute:
        """The route of a topic that exists."""
        topic = config.topic_name
        count = max(config.write_queue_nums, config.read_queue_nums)
        is_plain = not is_retry_or_dead_letter(topic) and config.topic_filter_type == "SINGLE_TAG"
        route = SendRoute(topic, count if is_plain else 0)
        self.by_topic[topic] = route
        return route

    def next_unique_id(self) -> str:
        """The id of a message whose producer gave it none."""
        return self._unique_ids.next(self._clock.wall_ms())

    def stored_properties(self, text: str) -> StoredProperties | None:
        """What is stored for the properties of a plain message; None when only the readable path can say.

        Properties are kept as they came where nothing in them must change, and written again otherwise.
        """
        parts = (text[:-1] if text.endswith(names.VALUE_END) else text).split(names.VALUE_END) if text else []
        try:
            pairs: dict[str, str] = dict([part.split(names.KEY_END) for part in parts])
        except ValueError:
            return None  # a pair without exactly one separator
        unique = pairs.get(names.UNIQUE_KEY)
        wait = pairs.get(names.WAIT_STORE, "true")
        if unique == "":
            return None
        is_waiting = wait == "true" or wait.lower() != "false"
        added = ""
        if unique is None:
            unique = pairs[names.UNIQUE_KEY] = self.next_unique_id()
            added = f"{UNIQUE_PREFIX}{unique}{names.VALUE_END}"
            parts.append(added)
        is_kept = len(pairs) == len(parts)
        if not _NOTED.isdisjoint(pairs):
            if not SPECIAL_PROPERTIES.isdisjoint(pairs):
                return None
            is_kept = is_kept and OWNED_PROPERTIES.isdisjoint(pairs)
        try:
            if is_kept:
                end = "" if not text or text.endswith(names.VALUE_END) else names.VALUE_END
                data = f"{text}{end}{added}".encode() + self._broker_tail
            else:
                if len(text.encode()) > PROPERTIES_BYTES_MAX:
                    return None
                pairs.pop(names.POP_CHECKPOINT, None)
                pairs.pop(names.RECORD_CRC, None)
                data = names.format_properties({**pairs, **self.added}).encode()
        except UnicodeEncodeError:
            return None
        if len(data) > PROPERTIES_BYTES_MAX:
            return None
        code = tags_code(pairs.get(names.TAGS))
        text_keys = pairs.get(names.KEYS)
        if text_keys:
            return data, unique, code, (unique, *names.split_keys(text_keys)), False, is_waiting
        is_shape = is_kept and is_waiting and text[:UNIQUE_START] == UNIQUE_PREFIX and len(unique) == 32
        return data, unique, code, (unique,), is_shape and unique.encode().isalnum(), is_waiting

    def slot(self, route: SendRoute, queue_id: int) -> QueueSlot:
        """The slot of a queue that is sent to for the first time."""
        slot = QueueSlot(self._store.queues.get_or_create(route.topic, queue_id), self.template(queue_id))
        route.slots[queue_id] = slot
        return slot

    def template(self, queue_id: int) -> bytes:
        """A successful reply, to be filled with (physical offset, queue offset, unique id, opaque)."""
        return (
            f'{{"code":0,"extFields":{{"MSG_REGION":"{self._region}","TRACE_ON":"true",'
            f'"msgId":"{self._host_hex}%016X","queueId":"{queue_id}","queueOffset":"%d","transactionId":"%b"}},'
            f'"flag":1,"language":"PYTHON","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":{PROTOCOL_VERSION}}}'
        ).encode()


def json_text(text: str) -> bytes:
    """`text` as the inside of a JSON string."""
    return msgspec.json.encode(text.encode("utf-8", "replace").decode())[1:-1]
