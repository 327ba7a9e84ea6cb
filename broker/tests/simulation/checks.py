"""Checks of an open store: its log, its queues and its keys are compared with the model, byte for byte."""

from __future__ import annotations

from simulation.model import Model, Piece, Queue

from gantry_broker.errors import IndexRebuilding
from gantry_broker.store.message_store import MessageStore
from gantry_testing.faulty_disk import FaultyDisk

ROOT = "/data/store"
LOG = f"{ROOT}/commitlog"
BYTES_MAX = 1 << 20


def log_files(disk: FaultyDisk) -> dict[int, bytes]:
    """Return the log files that hold anything, by base offset; an empty preallocated file is ignored."""
    files = {int(name): disk.read_file(f"{LOG}/{name}") for name in disk.list(LOG) if name.isdigit()}
    return {base: data for base, data in files.items() if data.count(0) != len(data)}


def check_log(disk: FaultyDisk, model: Model) -> None:
    """Check that the files hold the model's pieces, byte for byte, and only zeros after them."""
    for base, data in log_files(disk).items():
        expected = model.file(base)
        if data != expected:
            place = next(at for at, (one, other) in enumerate(zip(data, expected, strict=True)) if one != other)
            kind = "a foreign byte after the end" if base + place >= model.end else "an altered byte"
            raise AssertionError(f"{kind} of the log, at {base + place}; the log ends at {model.end}")


def expected_queues(model: Model) -> dict[Queue, list[Piece]]:
    """Return the messages of every queue of the model."""
    expected: dict[Queue, list[Piece]] = {queue: [] for queue in model.queue_ends}
    for piece in model.records():
        if piece.queue is not None:
            expected[piece.queue].append(piece)
    return expected


def check_queues(store: MessageStore, model: Model, shown: int) -> None:
    """Check that every queue has exactly its messages, with dense offsets, and shows those before ``shown``."""
    expected = expected_queues(model)
    for (topic, queue_id), pieces in expected.items():
        check_queue(store, (topic, queue_id), pieces, model.queue_ends[topic, queue_id], shown)
    for topic, queue_ids in store.queues.topics().items():
        for queue_id in queue_ids:
            queue = store.queues.get(topic, queue_id)
            assert (topic, queue_id) in expected or queue is None or queue.end == 0, f"{queue!r} was invented"


def check_queue(store: MessageStore, name: Queue, pieces: list[Piece], end: int, shown: int) -> None:
    """Check the begin, the visible messages and the end of one queue."""
    queue = store.queues.get(*name)
    if queue is None:
        assert not pieces and end == 0, f"the queue {name} does not exist"
        return
    readable = next((piece.queue_offset for piece in pieces if piece.start >= shown), end)
    assert (queue.readable_end, queue.end) == (readable, end), f"{queue!r} must end at {end} and show {readable}"
    begin = pieces[0].queue_offset if pieces else end
    assert queue.min_offset == begin, f"{queue!r} must begin at {begin}"
    assert [piece.queue_offset for piece in pieces] == list(range(begin, end)), "the model has a gap"
    pieces = pieces[: readable - begin]
    if pieces:
        result = store.read(*name, begin, count_max=len(pieces) + 1, bytes_max=BYTES_MAX)
        assert (result.count, result.next_offset) == (len(pieces), readable), f"{queue!r}: {result.status}"
        assert result.body == b"".join(piece.data for piece in pieces), f"{queue!r} shows other messages"


def check_keys(store: MessageStore, model: Model, shown: int) -> None:
    """Check that every message before ``shown`` is found by its key."""
    for piece in model.records():
        if piece.queue is not None and piece.start < shown:
            found = records_by_key(store, piece.queue[0], piece.key)
            if found is None:
                return
            assert piece.data in found, f"the message at {piece.start} is not found by its key"


def records_by_key(store: MessageStore, topic: str, key: str) -> list[bytes] | None:
    """Return the records that the index finds, after pending rebuilds; None if a rebuild has met a full disk."""
    while store.repair.step():
        pass
    try:
        return store.keys.records(topic, key, 64, 0, 1 << 60)[0]
    except IndexRebuilding:
        assert store.repair.index is not None and store.repair.index.is_waiting_for_room, "the index is not rebuilt"
        return None


class Consumer:
    """A consumer of one queue, which remembers how far messages were visible to it."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.offset = 0
        """The queue offset of the next message to read."""

        self.shown_end = 0
        """The physical end of the last message that was shown."""

    def read(self, store: MessageStore, model: Model, confirmed: int) -> None:
        """Read everything visible, which must be the model's messages, none of them beyond ``confirmed``."""
        queue = store.queues.get(*self.queue)
        if queue is None:
            return
        self.offset = max(self.offset, queue.min_offset)
        if queue.readable_end <= self.offset:
            return  # messages that were read before a restart may be hidden now
        result = store.read(*self.queue, self.offset, count_max=1000, bytes_max=BYTES_MAX)
        pieces = [piece for piece in model.of(self.queue) if self.offset <= piece.queue_offset < result.next_offset]
        assert result.body == b"".join(piece.data for piece in pieces), f"{queue!r} shows what was not sent"
        assert pieces, f"{queue!r} from {self.offset}: {result.status}"
        assert pieces[-1].end <= confirmed, f"{queue!r} shows a message beyond what is confirmed, {confirmed}"
        self.offset, self.shown_end = result.next_offset, pieces[-1].end

    def go_back(self, model: Model) -> None:
        """Set the offset back to the queue's end, after a fault that the mode does not cover, as the broker does."""
        self.offset = min(self.offset, model.queue_ends.get(self.queue, 0))
        self.shown_end = min(self.shown_end, model.end)
