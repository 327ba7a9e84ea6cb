"""Checks of files and queues after a fuzz run.

Nothing was written outside the store, the offsets of every queue are dense, and the store opens again with at least the
messages that its log has. The log is read without the broker.
"""

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from crash.log_walk import messages_by_queue, walk_log
from crash.processes import ServerProcess
from fuzz.pools import DELETABLE_TOPICS, ESCAPE_MARK
from fuzz.probe import ask

from gantry_wire import Command, RequestCode, names
from gantry_wire.commands.offsets import OffsetResult, QueueAddress

TOP_LEVEL: Final = frozenset(
    {"broker.conf", "broker.log", "broker.cwd", "store", "nameserver", "nameserver.log", "nameserver.cwd"}
)
"""The files and folders that a run makes in its directory."""


def stray_files(directory: Path, servers: Iterable[ServerProcess]) -> list[str]:
    """Return files that a server should not have made: beside the store, or by a hostile name."""
    strays = [str(path) for path in directory.iterdir() if path.name not in TOP_LEVEL]
    for server in servers:
        strays += [str(path) for path in server.working_directory.glob("**/*")]
    for folder in (directory.parent, Path(tempfile.gettempdir()), Path("/")):
        strays += [str(path) for path in folder.iterdir() if ESCAPE_MARK in path.name]
    strays += [str(path) for path in directory.glob("**/*") if ESCAPE_MARK in path.name]
    return strays + _illegal_queues(directory / "store" / "consumequeue")


def _illegal_queues(queues: Path) -> list[str]:
    """Return folders that no legal topic and queue id could have made."""
    found: list[str] = []
    for topic in queues.iterdir() if queues.is_dir() else ():
        if names.topic_fault(topic.name) is not None:
            found.append(str(topic))
        found += [str(queue) for queue in topic.iterdir() if not queue.name.isdigit()]
    return found


def gaps(store: Path, deleted_topics: set[str]) -> tuple[dict[tuple[str, int], int], list[str]]:
    """Return (messages per queue, faults). The offsets of every queue must be 0, 1, 2, ... in the order of the log.

    A deleted topic restarts, so its queues are left out.
    """
    ends: dict[tuple[str, int], int] = {}
    faults: list[str] = []
    for (topic, queue_id), messages in messages_by_queue(walk_log(store)).items():
        if topic in deleted_topics or topic in DELETABLE_TOPICS:
            continue
        ends[topic, queue_id] = len(messages)
        for expected, message in enumerate(messages):
            if message.queue_offset != expected:
                faults.append(f"{topic}/{queue_id}: offset {message.queue_offset} where {expected} should be")
                break
    return ends, faults


async def moved_ends(address: str, ends: dict[tuple[str, int], int]) -> list[str]:
    """Return the queues that end at the restarted broker before the end that they have in the log."""
    faults: list[str] = []
    for (topic, queue_id), end in ends.items():
        ext = QueueAddress(topic=topic, queue_id=queue_id).write()
        reply = await ask(address, Command(code=RequestCode.GET_MAX_OFFSET, ext=ext))
        found = OffsetResult.read(reply.ext).offset
        if found < end:
            faults.append(f"{topic}/{queue_id}: the broker ends it at {found}, the log holds {end} messages")
    return faults
