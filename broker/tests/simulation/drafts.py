"""The store of a history, and its sender: messages with serial numbers and chosen sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, final

from simulation.checks import ROOT
from simulation.model import BLANK_BYTES, PREPARED, Model, Piece, Queue
from simulation.modes import Mode
from simulation.situations import count_situation

from gantry_broker.store.draft import Draft
from gantry_broker.store.message_store import MessageStore
from gantry_testing.fake_clock import FakeClock
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.faulty_volume import FaultyVolume
from gantry_testing.store_world import BORN_HOST, STORE_HOST
from gantry_wire.properties import UNIQUE_KEY, format_properties

REST_SHORT: Final = -3
"""Instead of a size: a body after which the current file has one byte more than the blank at its end needs."""
REST: Final = -2
"""A body that fills the current file exactly, with the blank after it."""
REST_OVER: Final = -1
"""A body that is one byte too long for the current file."""


def make_store(disk: FaultyDisk, volumes: Mapping[str, FaultyVolume], clock: FakeClock, mode: Mode) -> MessageStore:
    """Create the store of a history, which is not open yet."""
    return MessageStore(
        ROOT, mode.settings(), disk=disk, clock=clock, store_host=STORE_HOST, on_fatal=lambda _: None,
        open_volume=lambda path: volumes[path],
    )  # fmt: skip


@final
class Sender:
    """A sender whose keys all have the same length, so that equal bodies make records of equal size."""

    QUEUES: Final[tuple[Queue, ...]] = (("orders", 0), ("orders", 1), ("bills", 0))

    def __init__(self, clock: FakeClock, model: Model) -> None:
        self._clock: Final = clock
        self._model: Final = model
        self._serial = 0

    @property
    def now_ms(self) -> int:
        """The store time of messages that are appended now."""
        return self._clock.wall_ms()

    def drafts(self, store: MessageStore, sizes: Sequence[int], queue: int, flags: int) -> list[Draft]:
        """Return a batch with bodies of these sizes, the first for ``QUEUES[queue]``, the others for the next ones."""
        drafts: list[Draft] = []
        room = self._model.room
        for number, size in enumerate(sizes):
            name = self.QUEUES[(queue + number) % len(self.QUEUES)]
            if size < 0:
                bare = self._draft(store, name, 0, flags).record_bytes(len(STORE_HOST))
                size = max(0, room - BLANK_BYTES - bare + size - REST)
            draft = self._draft(store, name, size, flags)
            room -= draft.record_bytes(len(STORE_HOST))
            if room < BLANK_BYTES:
                room = self._model.file_size
            drafts.append(draft)
        return drafts

    def drafts_like(self, store: MessageStore, pieces: Sequence[Piece]) -> list[Draft]:
        """Return new messages whose records are as long as ``pieces``, unless the queue of a piece is unknown."""
        return [self._draft(store, piece.queue or self.QUEUES[0], piece.body_bytes, 0) for piece in pieces]

    def _draft(self, store: MessageStore, name: Queue, size: int, flags: int) -> Draft:
        self._serial += 1
        key = f"7F0000010A3C18B4AAC2{self._serial:012X}"
        properties = format_properties({UNIQUE_KEY: key}).encode()
        body = (b"%07d " % self._serial * (size // 8 + 1))[:size]
        return Draft(
            store.queues.get_or_create(*name), body, properties, flags & PREPARED, self._serial,
            self._clock.wall_ms(), BORN_HOST, 0, 0, 0, 0, (key,),
        )  # fmt: skip

    def adopt_empty_queue_ends(
        self, store: MessageStore, recorded: Mapping[Queue, int], *, is_derived_lost: bool
    ) -> None:
        """Copy the ends of queues without messages into the model, which the store may or may not have kept.

        Either is right, since no message has a number below the kept end: no offset is used twice. An end that the
        recovery point has ``recorded`` is never given up, also if the queues were deleted.
        """
        model = self._model
        there = {piece.queue for piece in model.records()}
        for name in model.queue_ends.keys() - there:
            queue = store.queues.get(*name)
            end = queue.end if queue is not None else 0
            assert end >= recorded.get(name, 0), f"{name} begins at {end}, the recovery point has {recorded[name]}"
            if is_derived_lost or model.queue_ends[name] < end <= model.ends_before[name]:
                count_situation("an empty queue kept a lost number", end > model.queue_ends[name])
                model.number_from(name, end)
