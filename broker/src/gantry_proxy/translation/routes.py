"""Routes: from the queues of brokers to the queues that clients see, all of them at the address of the proxy.

A client reaches every broker through the proxy, so each broker has the endpoints that the client itself named: those
of the proxy, or of the load balancer in front of its replicas.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.statuses import ProxyError
from gantry_wire.commands.nameserver import MASTER_ID, PERMISSION_READ, PERMISSION_WRITE, QueueData, TopicRoute
from gantry_wire.hashing import java_string_hash

ANY_QUEUE: Final = -1
"""The queue id that stands for all queues of a broker."""
QUEUES_MAX: Final = 16_384
"""How many queues one reply lists: about 2 MiB."""
ENDPOINTS_MAX: Final = 64
"""How many addresses a client may name."""
HOST_CHARACTERS_MAX: Final = 255
"""The longest host of an address, as of a name in DNS."""
ENDPOINTS_BYTES_MAX: Final = 8_192
"""The size of a client's addresses together: 64 addresses of usual length. A reply repeats them for each queue."""
REPLY_BYTES_MAX: Final = 8 << 20
"""The size of a reply. It is reached by topics with thousands of queues if a client names many addresses."""
_QUEUE_BYTES: Final = 128
"""What a queue takes in a reply besides its topic, its broker's name and the addresses."""
MIXED: Final = "MIXED"
_MIXED_KINDS: Final = (pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION)
_KINDS: Final = {pb.MessageType.Name(kind): kind for kind in (*_MIXED_KINDS, pb.PRIORITY, pb.LITE)}
_LCG_FACTOR: Final = 2_862_933_555_777_941_757
_LONG_MASK: Final = (1 << 64) - 1


def check_endpoints(endpoints: pb.Endpoints) -> pb.Endpoints:
    """Return how the client reaches the proxy. Raises ProxyError if it names none, or too many."""
    if not 0 < len(endpoints.addresses) <= ENDPOINTS_MAX:
        raise ProxyError(
            pb.ILLEGAL_ACCESS_POINT, f"the endpoints have {len(endpoints.addresses)} addresses, expected 1 to 64"
        )
    longest, size = max(len(one.host) for one in endpoints.addresses), endpoints.ByteSize()
    if longest > HOST_CHARACTERS_MAX or size > ENDPOINTS_BYTES_MAX:
        raise ProxyError(
            pb.ILLEGAL_ACCESS_POINT,
            f"the endpoints have {size} bytes and a host of {longest} characters, at most {ENDPOINTS_BYTES_MAX} and "
            f"{HOST_CHARACTERS_MAX} are allowed",
        )
    return endpoints


def write_route(
    route: TopicRoute, topic: pb.Resource, endpoints: pb.Endpoints, topic_kind: str
) -> list[pb.MessageQueue]:
    """Return all queues of a topic, for producers and for consumers. Raises ProxyError for too many queues."""
    kinds = accepted_kinds(topic_kind)
    queues: list[pb.MessageQueue] = []
    queues_max = _queues_max(topic, endpoints)
    for data, brokers in _queue_datas(route):
        for broker_id in sorted(brokers):
            broker = pb.Broker(name=data.broker_name, id=min(broker_id, (1 << 31) - 1), endpoints=endpoints)
            for queue_id, permission in _permissions(data):
                if len(queues) >= queues_max:
                    raise _too_many_queues(topic, queues_max)
                queues.append(
                    pb.MessageQueue(
                        topic=topic, id=queue_id, permission=permission, broker=broker, accept_message_types=kinds
                    )
                )
    return queues


def write_assignments(
    route: TopicRoute, topic: pb.Resource, endpoints: pb.Endpoints, *, is_fifo: bool
) -> list[pb.Assignment]:
    """Return what a push consumer polls: each broker as a whole, or each of its queues for a group in order."""
    assignments: list[pb.Assignment] = []
    queues_max = _queues_max(topic, endpoints)
    for data, brokers in _queue_datas(route):
        if not data.perm & PERMISSION_READ or data.read_queue_nums < 1 or MASTER_ID not in brokers:
            continue
        broker = pb.Broker(name=data.broker_name, id=MASTER_ID, endpoints=endpoints)
        ids = range(min(data.read_queue_nums, QUEUES_MAX)) if is_fifo else (ANY_QUEUE,)
        assignments += [
            pb.Assignment(
                message_queue=pb.MessageQueue(
                    topic=topic, id=queue_id, permission=_permission(data.perm), broker=broker
                )
            )
            for queue_id in ids
        ]
        if len(assignments) > queues_max:
            raise _too_many_queues(topic, queues_max)
    return assignments


def _queues_max(topic: pb.Resource, endpoints: pb.Endpoints) -> int:
    """Return how many queues fit a reply that repeats the topic and the addresses of the client for each of them."""
    return min(QUEUES_MAX, REPLY_BYTES_MAX // (endpoints.ByteSize() + topic.ByteSize() + _QUEUE_BYTES))


def _too_many_queues(topic: pb.Resource, queues_max: int) -> ProxyError:
    return ProxyError(
        pb.INTERNAL_ERROR,
        f"topic {topic.name!r} has more than the {queues_max} queues that a reply lists: name fewer addresses of the "
        "proxy, or create topics with fewer queues",
    )


def accepted_kinds(topic_kind: str) -> list[pb.MessageType]:
    """Return the kinds of messages that a topic with this `message.type` accepts."""
    if topic_kind == MIXED:
        return list(_MIXED_KINDS)
    return [_KINDS.get(topic_kind, pb.MESSAGE_TYPE_UNSPECIFIED)]


def bucket_of_group(message_group: str, buckets: int) -> int:
    """Return the position of the queue for all messages of a group, as RocketMQ's proxy chooses it (jump hash)."""
    state = java_string_hash(message_group) & _LONG_MASK
    candidate = 0
    while True:
        state = (_LCG_FACTOR * state + 1) & _LONG_MASK
        following = int((candidate + 1) / (((state >> 33) + 1) / float(1 << 31)))
        if following >= buckets:
            return candidate
        candidate = following


def _queue_datas(route: TopicRoute) -> Iterable[tuple[QueueData, dict[int, str]]]:
    """Return the queues of each broker with its addresses, sorted by the name of the broker."""
    brokers = {broker.broker_name: broker.broker_addrs for broker in route.broker_datas}
    datas = sorted(route.queue_datas, key=lambda data: data.broker_name)
    return [(data, brokers[data.broker_name]) for data in datas if data.broker_name in brokers]


def _permissions(data: QueueData) -> Iterator[tuple[int, pb.Permission]]:
    """Yield (queue id, permission) of each queue: first those that are only read or only written, then the others."""
    can_read, can_write = bool(data.perm & PERMISSION_READ), bool(data.perm & PERMISSION_WRITE)
    reads = min(data.read_queue_nums, QUEUES_MAX) if can_read else 0
    writes = min(data.write_queue_nums, QUEUES_MAX) if can_write else 0
    both = min(reads, writes)
    counts = [(reads - both, pb.READ), (writes - both, pb.WRITE), (both, pb.READ_WRITE)]
    if not can_read and not can_write:
        counts = [(max(1, min(max(data.write_queue_nums, data.read_queue_nums), QUEUES_MAX)), pb.NONE)]
    permissions = [permission for count, permission in counts for _ in range(count)]
    yield from enumerate(permissions)


def _permission(perm: int) -> pb.Permission:
    if perm & PERMISSION_READ:
        return pb.READ_WRITE if perm & PERMISSION_WRITE else pb.READ
    return pb.WRITE if perm & PERMISSION_WRITE else pb.NONE
