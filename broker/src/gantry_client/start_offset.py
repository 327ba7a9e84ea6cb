"""Where a group begins in a queue: at its committed offset, or by rule when it has none.

Retry topics begin at their first message, whatever the rule: what lies there failed in this very group.
"""

from gantry_client.offset_store import OffsetStore
from gantry_client.queue_calls import QueueCalls
from gantry_client.settings import ConsumerSettings, StartFrom
from gantry_wire.commands.clients import MessageQueue
from gantry_wire.names import RETRY_PREFIX


async def start_offset(
    queue: MessageQueue, store: OffsetStore, queue_calls: QueueCalls, settings: ConsumerSettings
) -> tuple[int, int | None]:
    """(where to begin, what is committed). Raises a ClientError when it cannot be found out."""
    committed = await store.read(queue)
    if committed is not None and committed >= 0:
        return committed, committed
    if queue.topic.startswith(RETRY_PREFIX) or settings.start_from is StartFrom.FIRST:
        return await queue_calls.min_offset(queue), None
    if settings.start_from is StartFrom.TIMESTAMP:
        return await queue_calls.offset_at(queue, settings.start_timestamp_ms), None
    return await queue_calls.max_offset(queue), None
