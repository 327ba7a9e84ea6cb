"""Detection of foreign log files: a small file keeps a checksum of the first record of each log file.

    commitlog   | file 0: first record ... | file 1: first record ... | file 2: zeros, made ahead |
    heads         (0, CRC-32)                (16384, CRC-32)            none: nothing is in it yet

    <root>/log-heads.json   a sealed document: the store, how often its log was truncated, the heads

A record carries its offset and a seal, but not the identity of its store. A file of another store with the same name
would be served as this store's. The first record of a file never changes once it is on the disk, unless the log is
truncated before it, and only replicas of one log have the same first record: it holds times, addresses and a unique
key. A start compares the files with the kept checksums.

The rule it guards: **a file is foreign only if it begins with a whole, sealed record other than the recorded one.**
Bytes that are no whole record are damage or a loss, which other modules report. Only sealed records are kept here, so
that a flipped bit where RocketMQ wrote no seal cannot make a file look foreign. Files that RocketMQ has written are
therefore not compared. A file that begins with a whole record of another offset is misplaced, in any store.

A truncation invalidates heads, because the log after it is rewritten. The identity counts truncations, durably before
the log is written there again, and heads that were recorded before the last one are not trusted
(``StoreIdentity.cuts``).

``HeadKeeper`` records a head as soon as the first record is written. Until ``log-heads.json`` has it, ``log-end`` keeps
it for a start after a kill. While the store serves, records are served by their own seals or checksums, and queues and
index are rebuilt from them, only after ``HeadKeeper.is_foreign`` has checked that the file still begins with the same
record; a body that matches the sums of its queue needs no such check.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, final
from zlib import crc32

import msgspec

from gantry_broker.ports.disk import Disk
from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.file_queue import make_durable_directory
from gantry_broker.store.identity import StoreIdentity
from gantry_broker.store.replay import SET_ASIDE
from gantry_broker.store.sealed_file import OptionalFile, read_sealed, write_sealed
from gantry_store_files.disk import StoreDisk, StoreFile
from gantry_store_files.segments import parse_segment_name, segment_name
from gantry_wire.message import PHYSICAL_OFFSET_POSITION, RECORD_BYTES_MIN, check_record
from gantry_wire.seal import has_seal

log = logging.getLogger(__name__)

HEADS_FILE: Final = "log-heads.json"
SAMPLE_BYTES: Final = 128
"""Size of the compared sample of a first record, which includes its times, addresses and the checksum of its body."""

_SIZE_BYTES: Final = 4
"""A record begins with its size, in so many bytes."""


class FileHead(NamedTuple):
    """The checksum of the first record of a log file."""

    base_offset: int
    """The offset at which the file begins, which is its name."""

    crc: int
    """The CRC-32 of the whole record."""


class LogHeads(msgspec.Struct, frozen=True):
    """The content of the file ``log-heads.json``."""

    store: str
    """The uuid of the store that wrote it."""

    cuts: int
    """The ``cuts`` of the identity when the heads were recorded."""

    heads: list[FileHead]
    """The heads of the log's files, as far as their first records are sealed."""


class FirstRecord(NamedTuple):
    """A whole, sealed record at the beginning of a file."""

    own_offset: int
    """The physical offset that the record itself contains."""

    crc: int
    """The CRC-32 of the whole record."""


def first_record(file: StoreFile, file_bytes: int) -> FirstRecord | None:
    """Return the first record of a log file; None unless it is whole and sealed."""
    try:
        size = int.from_bytes(file.pread(_SIZE_BYTES, 0), "big")
        if not RECORD_BYTES_MIN <= size <= file_bytes:
            return None
        return first_record_of(memoryview(file.pread(size, 0)))
    except OSError:
        return None  # A read error is damage, which the readers of the log report.


def first_record_of(data: memoryview) -> FirstRecord | None:
    """Return the record that ``data`` begins with; None unless it is whole and sealed."""
    if len(data) < RECORD_BYTES_MIN:
        return None
    check = check_record(data, 0, is_sealed=True)
    if not check.is_good or check.size > len(data) or not has_seal(data, check.size):
        return None
    own = int.from_bytes(data[PHYSICAL_OFFSET_POSITION : PHYSICAL_OFFSET_POSITION + 8], "big")
    return FirstRecord(own, crc32(data[: check.size]))


@final
class HeadKeeper:
    """Keeps the heads of one log's files in memory and in ``log-heads.json``. Each head is read once.

    ``write`` belongs to the thread that writes recovery points, ``add_head`` and ``is_foreign`` to the loop's thread;
    ``read`` and ``trust_heads`` to the thread that opens the store before that, and ``forget_from`` to the one that
    truncates the log while nothing else uses the store.
    """

    def __init__(self, disk: Disk, root: str, commit_log: CommitLog) -> None:
        self._disk: Final = disk
        self._path: Final = f"{root}/{HEADS_FILE}"
        self._log: Final = commit_log
        self._written: LogHeads | None = None
        self._file: Final = OptionalFile(HEADS_FILE)
        self._crcs: dict[int, int | None] = {}
        """CRC by base offset; None for a file that does not begin with a sealed record of that offset."""

        self._samples: Final[dict[int, bytes]] = {}
        """The first bytes of files whose first records agree with their heads."""

    def __repr__(self) -> str:
        return f"<HeadKeeper files={len(self._crcs)}>"

    def read(self) -> LogHeads | None:
        """Return the content of the file; None if it is missing or damaged."""
        try:
            return read_sealed(self._disk, self._path, LogHeads)
        except ValueError as exc:
            log.warning(
                "log-heads.json is damaged; this start cannot detect log files of another store",
                extra={"path": self._path, "reason": str(exc)},
            )
            return None

    def trust_heads(self, heads: Sequence[FileHead]) -> None:
        """Use these heads, which were compared with the readable first records of the files."""
        self._crcs = {head.base_offset: head.crc for head in heads}

    def write(self, identity: StoreIdentity, end: int) -> None:
        """Write the heads of files that begin before ``end``, up to which the log is durable.

        Heads of later files stay in memory only. Durable when this returns. On a full disk the older file is kept,
        which is incomplete but not wrong.
        """
        crcs, heads = self._crcs, []
        files = self._log.files.files
        for file in files:
            base = file.base_offset
            if base >= end:
                continue
            if base not in crcs:
                crcs.setdefault(base, self._read_head(file.path, base))
            crc = crcs.get(base)
            if crc is not None:
                heads.append(FileHead(base, crc))
        begin = files[0].base_offset if files else end
        for base in [base for base in tuple(crcs) if base < begin]:
            crcs.pop(base, None)
            self._samples.pop(base, None)
        now = LogHeads(identity.uuid, identity.cuts, heads)
        if now == self._written:
            return
        if self._file.write(lambda: write_sealed(self._disk, self._path, now)):
            self._written = now

    def add_head(self, base_offset: int, data: bytes) -> int | None:
        """Record the head of a new file that begins with ``data``; return it, None if the first record has no seal."""
        found = first_record_of(memoryview(data))
        crc = self._crcs[base_offset] = found.crc if found is not None and found.own_offset == base_offset else None
        self._samples.pop(base_offset, None)
        return crc

    def forget_from(self, end: int) -> None:
        """Remove the heads of files at or after ``end``, where the log is about to be truncated."""
        for base in [base for base in tuple(self._crcs) if base >= end]:
            self._crcs.pop(base, None)
            self._samples.pop(base, None)

    def is_foreign(self, offset: int) -> bool:
        """Return whether the log file that holds ``offset`` now begins with a whole record other than its head."""
        base = offset - offset % self._log.file_size
        extent = self._log.at(base)
        if extent is None or extent.base_offset != base:
            return False
        sample = self._samples.get(base)
        if sample is not None and extent.view[:SAMPLE_BYTES] == sample:
            return False
        found = first_record_of(extent.view)
        if found is None:
            return False
        if found.own_offset != base or self._crcs.get(base, found.crc) not in (found.crc, None):
            return True
        self._samples[base] = bytes(extent.view[:SAMPLE_BYTES])
        return False

    def _read_head(self, path: str, base_offset: int) -> int | None:
        """Read the head of one file. It is opened again here, since retention may close the log's own meanwhile."""
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            return None
        try:
            found = first_record(file, self._log.file_size)
        finally:
            file.close()
        return found.crc if found is not None and found.own_offset == base_offset else None


class ComparedFile(NamedTuple):
    """A log file whose first record was compared with its head and its name."""

    base_offset: int
    """The offset in the name of the file."""

    own_offset: int
    """The offset in its first record, in another store or elsewhere in this one."""


@dataclass(frozen=True, slots=True)
class ComparedHeads:
    """The result of comparing the log files with their heads."""

    same: list[ComparedFile] = field(default_factory=list)
    """Files that begin with the recorded first record."""

    foreign: list[ComparedFile] = field(default_factory=list)
    """Files that begin with a whole record that is not the one in their head."""

    misplaced: list[ComparedFile] = field(default_factory=list)
    """Files that begin with a whole record of another offset than that of their name. This needs no head."""


def compare_heads(
    disk: StoreDisk, directory: str, names: Sequence[str], known: LogHeads | None, file_bytes: int
) -> ComparedHeads:
    """Compare the log's files, the ``names`` in ``directory``, with their heads and with their names.

    Files of another size are skipped; opening the log reports them.
    """
    crcs = {head.base_offset: head.crc for head in known.heads} if known is not None else {}
    compared = ComparedHeads()
    for name in names:
        base = parse_segment_name(name)
        if base is None:
            continue
        try:
            file = disk.open(f"{directory}/{name}")
        except (FileNotFoundError, IsADirectoryError):
            continue
        try:
            found = first_record(file, file_bytes) if file.size == file_bytes else None
        finally:
            file.close()
        if found is None:
            continue
        if found.own_offset != base:
            compared.misplaced.append(ComparedFile(base, found.own_offset))
        elif base in crcs:
            (compared.same if found.crc == crcs[base] else compared.foreign).append(ComparedFile(base, base))
    return compared


class SetAsideFile(NamedTuple):
    """A log file that was moved out of the log."""

    base_offset: int
    """The offset in the name that the file had in the log."""

    path: str
    """The path to which it was moved."""


def set_aside_file(disk: Disk, root: str, foreign: ComparedFile) -> SetAsideFile:
    """Move a log file to ``<root>/set-aside``, with a note of the reason. Durable when this returns."""
    directory, name = f"{root}/{SET_ASIDE}", segment_name(foreign.base_offset)
    make_durable_directory(disk, directory)
    number = 1
    while disk.exists(path := f"{directory}/commitlog-{name}-{number}"):
        number += 1
    reason = "this file was written by another store"
    if foreign.own_offset != foreign.base_offset:
        reason = f"this file belongs to offset {foreign.own_offset}, of this store or another one"
    note = {"reason": reason, "start": foreign.base_offset, "own_offset": foreign.own_offset}
    disk.write_file(f"{path}.json", msgspec.json.format(msgspec.json.encode(note)))
    disk.rename(f"{root}/commitlog/{name}", path)
    disk.sync_directory(directory)
    disk.sync_directory(f"{root}/commitlog")
    log.error(
        "log file set aside: written by another store or misplaced",
        extra={
            "path": f"{root}/commitlog/{name}",
            "offset": foreign.base_offset,
            "reason": reason,
            "set_aside": path,
            "remedy": "put this store's own file back there while the broker is stopped, follow a master that has it, "
            "or accept the loss with `gantry ha accept-loss`",
        },
    )
    return SetAsideFile(foreign.base_offset, path)
