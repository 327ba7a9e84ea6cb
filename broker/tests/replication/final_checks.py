"""The end of a run: the last master and the files of all members are compared with the history."""

from __future__ import annotations

import asyncio
import json
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from zlib import crc32

from crash.log_walk import log_files, messages_by_queue, walk_log
from gantry_histories.bodies import digest_of, read_key
from gantry_histories.consumer import queue_end, read_queue
from gantry_histories.events import Queue
from gantry_histories.final import EpochStart, LogSums, Piece, Stored
from gantry_histories.final import Final as End
from gantry_histories.findings import Mode
from gantry_histories.judges import Judgement, end_and_judge, find_porcupine
from gantry_histories.load import Load
from gantry_histories.recording import Recording
from replication.group import QUEUES, TOPIC, Group
from replication.supervisor import PATIENCE_S, Supervisor

from gantry_remoting import Channel

PIECE_BYTES: Final = 64 << 10


async def stop_and_check(
    group: Group, supervisor: Supervisor, load: Load, mode: Mode, patience_s: float = PATIENCE_S
) -> Judgement:
    """Stop the members, and return what both judges find in the history and in their files.

    Raises TimeoutError if a member does not catch up with the master, and nothing else is wrong.
    """
    master = supervisor.master
    late: TimeoutError | None = None
    try:
        await supervisor.wait_until_caught_up(patience_s)
    except TimeoutError as error:
        late = error
    committed_offsets = await load.finish(master.address)
    channel = await Channel.connect(master.address)
    queues = {queue: await read_queue(channel, queue) for queue in QUEUES}
    ends = {queue: await queue_end(channel, queue) for queue in QUEUES}
    await channel.close()
    statuses = {member.number: await member.status() for member in group.members if member.is_up}
    confirmed = min(statuses[master.number].confirmed or 0, *(status.wrote or 0 for status in statuses.values()))
    await group.stop()
    # Messages that have expired since they were read are no longer in the files.
    begin = int(log_files(master.store)[0].name)
    queues = {queue: [one for one in stored if one.physical_offset >= begin] for queue, stored in queues.items()}
    assert stored_in(master.store) == queues, "the log of the master has other messages than its queues"
    logs = [
        LogSums(f"member {member.number}", list(sums(member.store, confirmed)))
        for member in group.members
        if member.number in statuses
    ]
    end = End(queues, epochs_of(master.store), logs, committed_offsets, begin, ends)
    load.journal.flush()
    recording = Recording(load.journal.history, end, mode)
    judgement = await asyncio.to_thread(end_and_judge, load.journal.path, recording, find_porcupine())
    if late is not None and not judgement.findings:
        raise late
    return judgement


def stored_in(store: Path) -> dict[Queue, list[Stored]]:
    """Return what the log's files hold for the queues of the load, read without a broker."""
    messages = messages_by_queue(walk_log(store))
    return {
        queue: [
            Stored(read_key(message.body), digest_of(message.body), message.queue_offset, message.physical_offset)
            for message in messages.get((TOPIC, queue.number), [])
        ]
        for queue in QUEUES
    }


def sums(store: Path, end: int) -> Iterator[Piece]:
    """Return the checksums of a log's pieces up to ``end``; the last piece may be shorter."""
    for path in log_files(store):
        base, size = int(path.name), path.stat().st_size
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for start in range(base, min(base + size, end), PIECE_BYTES):
                stop = min(start + PIECE_BYTES, end, base + size)
                yield Piece(start, stop, crc32(data[start - base : stop - base]))


def epochs_of(store: Path) -> tuple[EpochStart, ...]:
    """Return the history of a log, as recorded in its store."""
    document = json.loads((store / "store.json").read_bytes().partition(b"\n")[2])
    return tuple(EpochStart(one["epoch"], one["start"]) for one in document["epochs"])
