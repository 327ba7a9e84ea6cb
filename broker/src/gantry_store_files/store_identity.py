"""Which store this is, and who wrote which part of its log: the document ``store.json`` and its twin.

    start of the log ...... 100 ............ 900 ....... 1200 ...... end
      somebody else's        ours             perhaps     ours
      body CRC only          seals demanded   not ours    seals demanded

Our records carry a seal, a checksum of the whole record. Where we wrote, a record without one is damaged, and that is
the point: a record torn behind its body would pass otherwise. Where RocketMQ wrote there is none to demand, and one
that is there may be stale, since RocketMQ copies it along with the other properties when it stores a message again. So
the seal is believed by place, and this document says the places. It also gives the store a name and counts its starts,
by which a write buffer found after a crash is known to belong here and now.

Both copies hold the same bytes after every write, and the twin is written last: one that has seen more starts of the
same store shows that the other was rolled back.
"""

from __future__ import annotations

from secrets import token_hex
from typing import Final, NamedTuple, Self

import msgspec

from gantry_store_files.disk import StoreDisk
from gantry_store_files.sealed import sealed_or_fault

FORMAT: Final = 1
IDENTITY_FILE: Final = "store.json"
IDENTITY_TWIN: Final = "store.json.bak"
LOG_END_MAX: Final = 2**63 - 1
"""The end of what has no end: offsets are 64-bit."""


class Epoch(msgspec.Struct, frozen=True):
    """From ``start`` to the start of the next one, the log has one writer."""

    epoch: int
    """Numbers rise along the log; one that was used is not used again."""

    start: int
    is_ours: bool = True
    """Whether a Gantry master wrote it, so that every record has a seal."""


class Stretch(NamedTuple):
    """A range of the log with one answer, so that a scan need not ask for every record."""

    is_ours: bool
    end: int
    """Where to ask again."""


class StoreIdentity(msgspec.Struct, frozen=True):
    """The document."""

    uuid: str
    """32 hex digits, drawn once for each store."""

    generation: int
    """How many starts have got as far as taking messages."""

    epochs: list[Epoch]
    """At least one, in the order of the log. Before the first one's start there is nothing of ours."""

    pool_path: str = ""
    """The directory of the write buffers used last, where the next start looks for what they hold."""

    log_end: int = 0
    """Up to where the log was on the disk when this was written: less at a start is a loss."""

    former: str = ""
    """The uuid that other files had when this was made for a log whose ``store.json`` was missing."""

    cuts: int = 0
    """How often the log's end was cut. Heads of files that were read before the last cut are not believed."""

    format: int = FORMAT

    def __post_init__(self) -> None:
        if len(self.uuid) != 32 or set(self.uuid) - set("0123456789abcdef"):
            raise ValueError("its uuid is not 32 hex digits")
        if self.format != FORMAT:
            raise ValueError(f"its format is {self.format}")
        if self.generation < 0 or not self.epochs or self.epochs[0].start < 0:
            raise ValueError("it has no epochs, or numbers below zero")
        for earlier, later in zip(self.epochs, self.epochs[1:], strict=False):
            if later.start < earlier.start or later.epoch <= earlier.epoch:
                raise ValueError("its epochs do not rise")

    @property
    def epoch(self) -> int:
        """The number of the last epoch: of what is being written now."""
        return self.epochs[-1].epoch

    def is_of(self, uuid: str) -> bool:
        """Whether a file that names this store, or none, belongs here."""
        return uuid in ("", self.uuid, self.former)

    def is_ours(self, offset: int) -> bool:
        """Whether the record that begins at ``offset`` must have a seal."""
        return self.ours_from(offset).is_ours

    def ours_from(self, offset: int) -> Stretch:
        """Whose the log is at ``offset``, and up to where that answer holds. Records never span two stretches."""
        answer, end = False, LOG_END_MAX
        for epoch in self.epochs:
            if epoch.start <= offset:
                answer = epoch.is_ours
            elif epoch.is_ours != answer:
                end = epoch.start
                break
        return Stretch(answer, end)

    def truncated(self, end: int) -> StoreIdentity:
        """After the log was cut at ``end``: epochs that begin beyond it have nothing left and are forgotten.

        Write it only when the cut is durable. What is appended next needs an epoch of ours: see ``started``.
        """
        kept = [epoch for epoch in self.epochs if epoch.start <= end]
        return msgspec.structs.replace(
            self, epochs=kept or [Epoch(self.epoch, end, is_ours=False)], log_end=min(self.log_end, end)
        )

    def started(self, end: int, *, written_by_others_from: int | None, is_tail_lost: bool = False) -> StoreIdentity:
        """The next start, which appends at ``end``. Write it before the first message is taken.

        ``written_by_others_from`` is where somebody else may have begun to write since our last stop: behind the last
        recovery point, if the checkpoint's seal is not ours; at the start of the log, if there is no such point either.
        ``is_tail_lost``: epochs that began behind ``end`` were this log's, and a slave that has their bytes is asked.
        """
        epochs, number = list(self.epochs), self.epoch
        foreign = end if written_by_others_from is None else min(written_by_others_from, end)
        if foreign < end:
            epochs = [epoch for epoch in epochs if epoch.start < foreign]
            if not epochs or epochs[-1].is_ours:
                number += 1
                epochs.append(Epoch(number, foreign, is_ours=False))
        if not is_tail_lost:
            epochs = [epoch for epoch in epochs if epoch.start <= end]
        if not epochs or not epochs[-1].is_ours:
            epochs.append(Epoch(number + 1, max(end, epochs[-1].start if epochs else 0)))
        durable = 0 if end == LOG_END_MAX else end
        return msgspec.structs.replace(self, generation=self.generation + 1, epochs=epochs, log_end=durable)


def new_identity(end: int, former: str = "") -> StoreIdentity:
    """Of a store that has no such file. Whatever is in its log, up to ``end``, is somebody else's."""
    epochs = [Epoch(1, 0)] if end == 0 else [Epoch(1, 0, is_ours=False), Epoch(2, end)]
    return StoreIdentity(uuid=token_hex(16), generation=0, epochs=epochs, former=former)


class IdentityCopies(NamedTuple):
    """``store.json`` and its twin as they were read, and why one of them cannot be used."""

    own: StoreIdentity | None
    twin: StoreIdentity | None
    own_fault: str = ""
    twin_fault: str = ""

    @classmethod
    def of(cls, own: tuple[StoreIdentity | None, str], twin: tuple[StoreIdentity | None, str]) -> Self:
        """Two copies, each with its fault."""
        return cls(own[0], twin[0], own[1], twin[1])

    @property
    def chosen(self) -> StoreIdentity | None:
        """The copy that counts: ``store.json``, unless its twin has seen more starts of the same store."""
        own, twin = self.own, self.twin
        if own is None or twin is None:
            return own or twin
        return twin if twin.uuid == own.uuid and twin.generation > own.generation else own

    @property
    def fault(self) -> str:
        """Why it is not ``store.json``, or why it is neither; empty if all is well, or there has never been one."""
        own, chosen = self.own, self.chosen
        if own is not None:
            if chosen is None or chosen is own:
                return ""
            return f"{IDENTITY_FILE} is of start {own.generation}, and its twin of start {chosen.generation}"
        if chosen is None and not self.own_fault and not self.twin_fault:
            return ""
        own_fault = self.own_fault or "it is missing"
        twin_fault = "" if chosen is not None else f"; {IDENTITY_TWIN}: {self.twin_fault or 'it is missing'}"
        return f"{IDENTITY_FILE}: {own_fault}{twin_fault}"


def read_copies(disk: StoreDisk, root: str) -> IdentityCopies:
    """Both copies of the identity of the store in ``root``. Raises ``OSError`` where one cannot be read at all."""
    return IdentityCopies.of(
        *(sealed_or_fault(disk, f"{root}/{name}", StoreIdentity) for name in (IDENTITY_FILE, IDENTITY_TWIN))
    )


def read_identity(disk: StoreDisk, root: str) -> StoreIdentity | None:
    """The identity of the store in ``root`` by the copy that counts; None where no whole copy can be read."""
    found: list[StoreIdentity | None] = []
    for name in (IDENTITY_FILE, IDENTITY_TWIN):
        try:
            found.append(sealed_or_fault(disk, f"{root}/{name}", StoreIdentity)[0])
        except OSError:
            found.append(None)
    own, twin = found
    return IdentityCopies(own, twin).chosen
