"""What the send path has to know about a topic, computed once and kept until the topic changes.

Producers of a topic send few shapes of properties: the same names and values but for the unique id in front. A shape
holds what the broker adds and the hash of the tags, so that the usual message costs one dictionary look-up instead of
a parse. A shape is remembered only when nothing in it asks for special treatment, and their number is bounded.
"""

from typing import Final, final

from gantry_broker.store.consume_queue import ConsumeQueue
from gantry_broker.store.message_store import MessageStore
from gantry_wire import properties as names
from gantry_wire.codes import PROTOCOL_VERSION
from gantry_wire.commands.admin import TopicConfig
from gantry_wire.hashing import tags_code
from gantry_wire.names import is_retry_or_dead_letter
from gantry_wire.properties import parse_properties

SHAPES_MAX: Final = 1024
SHAPE_BYTES_MAX: Final = 2048
UNIQUE_PREFIX: Final = f"{names.UNIQUE_KEY}{names.KEY_END}"
UNIQUE_PREFIX_BYTES: Final = UNIQUE_PREFIX.encode()
UNIQUE_START: Final = len(UNIQUE_PREFIX)
UNIQUE_END: Final = UNIQUE_START + 32

SPECIAL_PROPERTIES: Final = frozenset(
    {
        names.KEYS,
        names.DELAY_LEVEL,
        names.TRANSACTION_PREPARED,
        names.TIMER_DELAY_SECONDS,
        names.TIMER_DELAY_MS,
        names.TIMER_DELIVER_MS,
        names.POP_CHECKPOINT,
        names.RECORD_CRC,
        names.UNIQUE_KEY,
        names.MESSAGE_REGION,
        names.TRACE_ON,
        names.CLUSTER,
    }
)
"""A message with one of these (beside the leading unique id) takes the readable path.

So does one that does not want to wait until it is stored as the mode promises.
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

    __slots__ = ("_broker_tail", "shapes", "slots", "topic")

    def __init__(self, topic: str, queue_count: int, broker_tail: bytes) -> None:
        self.topic: Final = topic
        self.slots: Final[list[QueueSlot | None]] = [None] * queue_count
        self.shapes: Final[dict[str, Shape]] = {}
        self._broker_tail = broker_tail

    def learn(self, tail: str) -> Shape | None:
        """The shape of properties that end in `tail`; None when they need the readable path."""
        if not tail.startswith(names.VALUE_END) or len(tail) > SHAPE_BYTES_MAX:
            return None
        pairs = parse_properties(tail[1:])
        if not SPECIAL_PROPERTIES.isdisjoint(pairs) or pairs.get(names.WAIT_STORE) == "false":
            return None
        ended = tail if tail.endswith(names.VALUE_END) else tail + names.VALUE_END
        try:
            shape = Shape(ended.encode() + self._broker_tail, tags_code(pairs.get(names.TAGS)))
        except UnicodeEncodeError:
            return None
        if len(self.shapes) >= SHAPES_MAX:
            self.shapes.clear()
        self.shapes[tail] = shape
        return shape


@final
class SendRoutes:
    """Routes by topic. Owned by the event loop."""

    def __init__(self, store: MessageStore, *, store_host: bytes, cluster: str, region: str) -> None:
        self._store = store
        self._host_hex = store_host.hex().upper()
        self._region = region
        self.added = {names.MESSAGE_REGION: region, names.TRACE_ON: "true", names.CLUSTER: cluster}
        """Properties that the broker adds to every message."""
        self._broker_tail = names.encode_properties(self.added)
        self.by_topic: dict[str, SendRoute] = {}

    def forget(self, topic: str) -> None:
        """The topic changed; compute anew when it is next sent to."""
        self.by_topic.pop(topic, None)

    def make(self, config: TopicConfig) -> SendRoute:
        """The route of a topic that exists."""
        topic = config.topic_name
        count = max(config.write_queue_nums, config.read_queue_nums)
        is_plain = not is_retry_or_dead_letter(topic) and config.topic_filter_type == "SINGLE_TAG"
        route = SendRoute(topic, count if is_plain else 0, self._broker_tail)
        self.by_topic[topic] = route
        return route

    def slot(self, route: SendRoute, queue_id: int) -> QueueSlot:
        """The slot of a queue that is sent to for the first time."""
        slot = QueueSlot(self._store.queue(route.topic, queue_id), self.template(queue_id))
        route.slots[queue_id] = slot
        return slot

    def template(self, queue_id: int) -> bytes:
        """A successful reply, to be filled with (physical offset, queue offset, unique id, opaque)."""
        return (
            f'{{"code":0,"extFields":{{"MSG_REGION":"{self._region}","TRACE_ON":"true",'
            f'"msgId":"{self._host_hex}%016X","queueId":"{queue_id}","queueOffset":"%d","transactionId":"%b"}},'
            f'"flag":1,"language":"PYTHON","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":{PROTOCOL_VERSION}}}'
        ).encode()
