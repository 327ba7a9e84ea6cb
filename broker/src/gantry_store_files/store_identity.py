"""The identity of a store, and the writer of each part of its log: the document ``store.json`` and its copy.

    start of the log ...... 100 ............ 900 ....... 1200 ...... end
      RocketMQ's             ours             perhaps     ours
      body CRC only          seals required   not ours    seals required

Gantry's records have a seal, a checksum of the whole record, if their properties leave room for it. Where Gantry wrote,
a record with room for a seal but without one is damaged; otherwise a record that is torn after its body would be
accepted. Where RocketMQ wrote, no seal can be required, and an existing one may be stale, since RocketMQ copies it with
the other properties when it stores a message again. So a seal is required by position, and this document records the
positions. It also gives the store a name and counts its starts, by which a start recognizes the write buffers that
belong to this store and to its last run.

Both copies have the same bytes after every write, and ``store.json.bak`` is written last. If its generation is higher,
with the same uuid, then ``store.json`` was rolled back.
"""

from __future__ import annotations

from secrets import token_hex
from typing import Final, NamedTuple, Self

import msgspec

from gantry_store_files.disk import StoreDisk
from gantry_store_files.sealed import read_sealed_or_fault

FORMAT: Final = 1
IDENTITY_FILE: Final = "store.json"
IDENTITY_BACKUP: Final = "store.json.bak"
LOG_END_MAX: Final = 2**63 - 1
"""The end of an unbounded range: offsets are 64-bit."""


class Epoch(msgspec.Struct, frozen=True):
    """An epoch record: a range of the log with one writer, from ``start`` to the start of the next epoch."""

    epoch: int
    """The number of the epoch. They ascend along the log; one is used again only if a truncation has removed it."""

    start: int
    """The physical offset at which the epoch begins."""

    is_ours: bool = True
    """Whether a Gantry master wrote the range: every record whose properties leave room for a seal has one."""


class OwnershipRange(NamedTuple):
    """A range of the log with one kind of writer, so that a scan need not look up every record."""

    is_ours: bool
    """Whether Gantry wrote the range, so that records need a seal."""

    end: int
    """The end of the range, where the next look-up is needed."""


class StoreIdentity(msgspec.Struct, frozen=True):
    """The content of the file ``store.json``."""

    uuid: str
    """32 hex digits, generated once for each store."""

    generation: int
    """The number of starts that have reached the point where messages are accepted.

    A start on a disk that is too full to write this file is not counted.
    """

    epochs: list[Epoch]
    """The epochs in the order of the log, at least one. Nothing before the first one's start was written by Gantry."""

    pool_path: str = ""
    """The directory of the write buffers that were used last, which the next start searches."""

    log_end: int = 0
    """The end of the log on the disk when this was written. If a start finds less, data was lost."""

    former: str = ""
    """The uuid in other files when this was created for a log whose ``store.json`` was missing."""

    cuts: int = 0
    """The number of truncations, without those of a start that removed no first record of a log file. What was recorded
    before the last one about the first records of log files is not trusted."""

    format: int = FORMAT

    def __post_init__(self) -> None:
        if len(self.uuid) != 32 or set(self.uuid) - set("0123456789abcdef"):
            raise ValueError("its uuid is not 32 hex digits")
        if self.format != FORMAT:
            raise ValueError(f"its format is {self.format}, expected {FORMAT}")
        if self.generation < 0 or not self.epochs or self.epochs[0].start < 0:
            raise ValueError("it has no epochs, or negative numbers")
        for earlier, later in zip(self.epochs, self.epochs[1:], strict=False):
            if later.start < earlier.start or later.epoch <= earlier.epoch:
                raise ValueError("its epochs are not in ascending order")

    @property
    def epoch(self) -> int:
        """Return the number of the last epoch, in which the store is written now."""
        return self.epochs[-1].epoch

    def accepts_uuid(self, uuid: str) -> bool:
        """Return whether a file with this store uuid, or without one, belongs to this store."""
        return uuid in ("", self.uuid, self.former)

    def is_ours(self, offset: int) -> bool:
        """Return whether the record at ``offset`` must have a seal, if its properties leave room for one."""
        return self.ownership_at(offset).is_ours

    def ownership_at(self, offset: int) -> OwnershipRange:
        """Return whether Gantry wrote the log at ``offset``, and the end of that range. No record spans two ranges."""
        answer, end = False, LOG_END_MAX
        for epoch in self.epochs:
            if epoch.start <= offset:
                answer = epoch.is_ours
            elif epoch.is_ours != answer:
                end = epoch.start
                break
        return OwnershipRange(answer, end)

    def with_truncated_log(self, end: int) -> StoreIdentity:
        """Return the identity after the log was truncated at ``end``: epochs that begin after it are dropped.

        Write it only after the truncation is durable. Appending then needs an epoch of Gantry: see ``with_new_start``.
        """
        kept = [epoch for epoch in self.epochs if epoch.start <= end]
        return msgspec.structs.replace(
            self, epochs=kept or [Epoch(self.epoch, end, is_ours=False)], log_end=min(self.log_end, end)
        )

    def with_new_start(self, end: int, *, rocketmq_start: int | None, is_end_lost: bool = False) -> StoreIdentity:
        """Return the identity of a start that appends at ``end``: with the next generation, and in an epoch of Gantry.

        Write it before the first message is accepted. ``rocketmq_start`` is where RocketMQ may have begun to write
        since the last stop: after the last recovery point, if the checkpoint has no intact seal of Gantry; at the start
        of the log, if there is no such point either; None if it has one. With ``is_end_lost`` the epochs that began
        after ``end`` are kept: they belonged to this log, and a slave that has their bytes may give them back.
        """
        epochs, number = list(self.epochs), self.epoch
        foreign = end if rocketmq_start is None else min(rocketmq_start, end)
        if foreign < end:
            epochs = [epoch for epoch in epochs if epoch.start < foreign]
            if not epochs or epochs[-1].is_ours:
                number += 1
                epochs.append(Epoch(number, foreign, is_ours=False))
        if not is_end_lost:
            epochs = [epoch for epoch in epochs if epoch.start <= end]
        if not epochs or not epochs[-1].is_ours:
            epochs.append(Epoch(number + 1, max(end, epochs[-1].start if epochs else 0)))
        durable = 0 if end == LOG_END_MAX else end
        return msgspec.structs.replace(self, generation=self.generation + 1, epochs=epochs, log_end=durable)


def create_identity(end: int, former: str = "") -> StoreIdentity:
    """Create the identity of a store without ``store.json``.

    Everything in its log, up to ``end``, counts as written by RocketMQ.
    """
    epochs = [Epoch(1, 0)] if end == 0 else [Epoch(1, 0, is_ours=False), Epoch(2, end)]
    return StoreIdentity(uuid=token_hex(16), generation=0, epochs=epochs, former=former)


class IdentityCopies(NamedTuple):
    """The two copies of the identity as they were read, and the fault of a copy that cannot be used."""

    current: StoreIdentity | None
    backup: StoreIdentity | None
    current_fault: str = ""
    """Why ``store.json`` cannot be used; empty if it can or does not exist."""

    backup_fault: str = ""

    @classmethod
    def of(cls, current: tuple[StoreIdentity | None, str], backup: tuple[StoreIdentity | None, str]) -> Self:
        """Return both copies from two results of (identity, fault)."""
        return cls(current[0], backup[0], current[1], backup[1])

    @property
    def chosen(self) -> StoreIdentity | None:
        """Return the valid copy: ``store.json``, unless the other one has more starts of the same store."""
        current, backup = self.current, self.backup
        if current is None or backup is None:
            return current or backup
        return backup if backup.uuid == current.uuid and backup.generation > current.generation else current

    @property
    def fault(self) -> str:
        """Return why ``store.json`` or both copies cannot be used; empty without a fault, or if neither file exists."""
        current, chosen = self.current, self.chosen
        if current is not None:
            if chosen is None or chosen is current:
                return ""
            return f"{IDENTITY_FILE} has generation {current.generation}, {IDENTITY_BACKUP} has {chosen.generation}"
        if chosen is None and not self.current_fault and not self.backup_fault:
            return ""
        current_fault = self.current_fault or "it is missing"
        backup_fault = "" if chosen is not None else f"; {IDENTITY_BACKUP}: {self.backup_fault or 'it is missing'}"
        return f"{IDENTITY_FILE}: {current_fault}{backup_fault}"


def read_copies(disk: StoreDisk, root: str) -> IdentityCopies:
    """Read both copies of the identity of the store in ``root``.

    Raises ``OSError`` where a file cannot be read at all.
    """
    return IdentityCopies.of(
        *(read_sealed_or_fault(disk, f"{root}/{name}", StoreIdentity) for name in (IDENTITY_FILE, IDENTITY_BACKUP))
    )


def read_identity(disk: StoreDisk, root: str) -> StoreIdentity | None:
    """Return the identity of the store in ``root`` by its valid copy, or None if no copy can be used."""
    found: list[StoreIdentity | None] = []
    for name in (IDENTITY_FILE, IDENTITY_BACKUP):
        try:
            found.append(read_sealed_or_fault(disk, f"{root}/{name}", StoreIdentity)[0])
        except OSError:
            found.append(None)
    current, backup = found
    return IdentityCopies(current, backup).chosen
