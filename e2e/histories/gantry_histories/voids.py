"""Queue offsets that no message has, since a void record is in the place of their message, are taken out of a history.

    offsets of a queue    0  1  2  4  5        3 was lost before any slave had it
    as they are judged    0  1  2  3  4        everywhere in the file: answers, receipts, pulls, commits

Both judges demand dense offsets. An acknowledged message at such an offset is still found, since its offset belongs to
another one then. Only offsets with a void record between the messages before and after them are taken out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from msgspec.structs import replace

from gantry_histories.events import History, Queue
from gantry_histories.final import Final, Stored
from gantry_histories.recording import Recording

Move = Callable[[Queue, int], int]


def find_void_offsets(final: Final, voids: Sequence[int]) -> dict[Queue, list[int]]:
    """Return the offsets of each queue that are lost, in a log with void records at these physical offsets."""
    lost: dict[Queue, list[int]] = {}
    for queue, messages in final.queues.items():
        for before, after in pairwise(messages):
            missing = range(before.queue_offset + 1, after.queue_offset)
            if missing and any(before.physical_offset < void < after.physical_offset for void in voids):
                lost.setdefault(queue, []).extend(missing)
    return lost


def without_void_offsets(recording: Recording, lost: Mapping[Queue, Sequence[int]]) -> Recording:
    """Return a recording in which the offsets after lost ones are that much lower."""

    def move(queue: Queue, offset: int) -> int:
        return offset - bisect_left(lost.get(queue, ()), offset)

    final = recording.final
    queues = {
        queue: [Stored(one.key, one.digest, move(queue, one.queue_offset), one.physical_offset) for one in messages]
        for queue, messages in final.queues.items()
    }
    moved = Final(
        queues, final.epochs, final.logs,
        {(client, queue): move(queue, offset) for (client, queue), offset in final.committed.items()},
        final.begin, {queue: move(queue, end) for queue, end in final.ends.items()},
    )  # fmt: skip
    return recording._replace(history=_move_events(recording.history, move), final=moved)


def _move_events(history: History, move: Move) -> History:
    sent = history.sent
    return History(
        dict(sent),
        {
            key: replace(answer, queue_offset=move(sent[key].queue, answer.queue_offset))
            for key, answer in history.answered.items()
        },
        [replace(shown, queue_offset=move(shown.queue, shown.queue_offset)) for shown in history.shown],
        [
            replace(one, begin=move(one.queue, one.begin), next=move(one.queue, one.next), end=move(one.queue, one.end))
            for one in history.reads
        ],
        [replace(event, offset=move(event.queue, event.offset)) for event in history.offsets],
        list(history.terms),
    )
