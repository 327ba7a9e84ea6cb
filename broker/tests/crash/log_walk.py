"""A reader of all messages of a store from its commit log files, without the broker.

It uses the record format of `gantry_wire` and nothing of `gantry_broker`, so that an error in the broker's own reading
cannot hide itself. Files are named by the offset of their first byte; after a blank record the next file follows, and
anything that is no record ends the log.
"""

import mmap
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from gantry_wire.message import RecordFault, StoredMessage, check_record, decode_record

Queue = tuple[str, int]
"""A queue by its topic and its id."""


def log_files(store: Path) -> list[Path]:
    """Return the files of the commit log in order."""
    return sorted(path for path in (store / "commitlog").glob("*") if path.name.isdigit())


def walk_log(store: Path, *, is_sealed: bool = False) -> Iterator[StoredMessage]:
    """Yield the messages in physical order, each at its own physical offset, up to the first that is invalid.

    With `is_sealed` all of them were written by a Gantry master, and a record whose seal does not match or is missing
    ends the log.
    """
    expected: int | None = None
    for path in log_files(store):
        base = int(path.name)
        if expected is not None and base != expected:
            return
        size = path.stat().st_size
        expected = base + size
        if size == 0:
            return
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            position = 0
            while position < size:
                with memoryview(data) as view:
                    check = check_record(view, position, physical_offset=base + position, is_sealed=is_sealed)
                    message = decode_record(view, position) if check.is_good else None
                if message is None:
                    if check.fault is RecordFault.BLANK:
                        break
                    if size - position < 8:
                        break
                    return
                yield message
                position += check.size


def messages_by_queue(messages: Iterator[StoredMessage]) -> dict[Queue, list[StoredMessage]]:
    """Group messages by topic and queue, in the order of the log."""
    queues: dict[Queue, list[StoredMessage]] = defaultdict(list)
    for message in messages:
        queues[message.topic, message.queue_id].append(message)
    return dict(queues)
