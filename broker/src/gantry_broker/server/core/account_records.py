"""The records in the log that follow changes of users and policies, of which each holds the number of its change.

    change 7 -> on the disk -> record 7 in the log -> on slaves -> answered

A record is appended when the change is on the disk, so a store with record 7 has change 7 in `accounts.json`. A start
compares the two: fewer changes in the file mean that it was lost, or replaced by an older one, in which users may exist
that were deleted since. A slave that crashed may have the record alone, which its master then corrects; so the
difference is reported, and is no reason to refuse the start. No record holds a secret.
"""

from __future__ import annotations

from typing import Final

from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.store.draft import Draft
from gantry_broker.store.message_store import MessageStore
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.message import FLAG_BORN_HOST_V6, decode_record

CHANGES_TOPIC: Final = "rmq_sys_gantry_account_changes"
"""The topic of the records. Only a broker writes it."""


def append_change_record(core: BrokerCore, change_count: int) -> None:
    """Append the record of the change with this number. Raises the store's errors."""
    core.topics.ensure(CHANGES_TOPIC, 1)
    host = core.store_host
    core.store.append([Draft(
        queue=core.store.queues.get_or_create(CHANGES_TOPIC, 0), body=str(change_count).encode(), properties=b"",
        sys_flag=FLAG_BORN_HOST_V6 if len(host) == 20 else 0, flag=0, born_timestamp_ms=core.clock.wall_ms(),
        born_host=host, reconsume_times=0, prepared_offset=0, tags_code=0, delay_ms=0, keys=(),
    )])  # fmt: skip


def last_recorded_change(store: MessageStore) -> int | None:
    """Return the number of the last change that the log has a record of; None if no change was ever recorded.

    It is 0 if that record has expired, or is damaged.
    """
    queue = store.queues.get(CHANGES_TOPIC, 0)
    if queue is None or not queue.end:
        return None
    unit = queue.unit(queue.end - 1)
    record = None if unit is None else store.guard.message_at(unit[0], is_known=True)
    try:
        return 0 if record is None else int(decode_record(record).body)
    except (RemoteProtocolError, ValueError):
        return 0
