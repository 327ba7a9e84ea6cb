"""Which member of a group reads which queue.

Every member computes this alone from the same two lists, so all must compute the same: the order of queues and of
client ids and the way of dividing are those of RocketMQ's default strategy, and Java members of a group agree with us.

    5 queues, 2 members:   [ 0 1 2 | 3 4 ]         the first ones get one more
    2 queues, 3 members:   [ 0 | 1 | - ]           the last ones get none
"""

from collections.abc import Iterable, Sequence

from gantry_wire.commands.clients import MessageQueue


def allocate_averagely(
    queues: Iterable[MessageQueue], client_ids: Iterable[str], client_id: str
) -> Sequence[MessageQueue]:
    """The queues of `client_id`: a run of neighbours in the sorted list. None for one that is not among the ids."""
    ordered = sorted(set(queues), key=_java_order)
    ids = sorted(set(client_ids), key=_utf16)
    if client_id not in ids:
        return []
    share, extra = divmod(len(ordered), len(ids))
    index = ids.index(client_id)
    start = index * share + min(index, extra)
    return ordered[start : start + share + (1 if index < extra else 0)]


def _java_order(queue: MessageQueue) -> tuple[bytes, bytes, int]:
    return _utf16(queue.topic), _utf16(queue.broker_name), queue.queue_id


def _utf16(text: str) -> bytes:
    """Java compares texts by UTF-16 units."""
    return text.encode("utf-16-be", "surrogatepass")
