"""Effects of faults on disk and memory, damages before the next start, and the log after an undisturbed recovery."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import count
from operator import itemgetter
from typing import Final
from zlib import crc32

from simulation.checks import LOG, ROOT, log_files
from simulation.drafts import make_store
from simulation.model import Model
from simulation.modes import Fault, Mode, Positions
from simulation.situations import count_situation
from simulation.traps import Traps

from gantry_broker.errors import StoreFull, StoreUnusable
from gantry_broker.store.write_buffer import CRC_POSITION, HEADER_POSITION, BufferState, read_header, read_state
from gantry_testing.fake_clock import FakeClock
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.faulty_volume import FaultyVolume

COPY_BYTES: Final = 64
"""The size of the pieces that a processor may copy in any order."""
FIRST_FOREIGN_NUMBER: Final = 900
"""The number in the name of the first buffer that is put back."""
UUID_POSITION: Final = HEADER_POSITION + 12

DERIVED: Final = {
    "queues": "consumequeue",
    "index": "index",
    "checkpoint": "checkpoint",
    "point": "recovery-point.json",
    "identity": "store.json",
}
"""Files that can be deleted without losing a message: ``store.json`` has the copy ``store.json.bak``."""


def apply_fault(
    disk: FaultyDisk, volumes: Mapping[str, FaultyVolume], model: Model, fault: Fault, at: Positions, seed: int
) -> None:
    """Apply the effects of ``fault`` to disk and memory of a store with the positions ``at``."""
    if fault is Fault.KILL_COPYING:
        tear_copies(volumes, model, at.wrote, seed)
    if fault is Fault.POWER:
        disk.lose_unsynced()
    elif fault is Fault.POWER_TORN:
        disk.tear(seed)
    elif fault is Fault.POWER_HOLE:
        tear_hole(disk, model, at.flushed, seed)
    else:
        disk.kill()
    if fault is Fault.KILL_COLD:
        disk.drop_caches()
    for volume in volumes.values():
        if fault.is_power or fault is Fault.KILL_BUFFERS_GONE:
            volume.lose_power()
        else:
            volume.kill()


def tear_copies(volumes: Mapping[str, FaultyVolume], model: Model, wrote: int, seed: int) -> None:
    """Undo a random part of what the unfinished append has copied into buffers after the written end.

    An append copies into one buffer after the other: those before the torn one are complete, those after it empty.
    """
    chance = random.Random(seed)
    start, end = max(model.end, wrote), model.pending[-1].end if model.pending else model.end
    copies: list[tuple[int, bytearray, range]] = []
    for volume in volumes.values():
        for name in sorted(volume.pieces):
            data = volume.pieces[name]
            header = read_header(memoryview(data))
            if header is None or read_state(memoryview(data)) is not BufferState.LIVE:
                continue
            base, last = header.base_offset, min(end, header.base_offset + header.file_size)
            if base < last and start < last:
                first = header.header_bytes + max(start, base) - base
                copies.append((base, data, range(first, header.header_bytes + last - base)))
    torn = chance.randrange(len(copies)) if copies else 0
    for number, (_, data, copied) in enumerate(sorted(copies, key=itemgetter(0))):
        lost_share = 0 if number < torn else 0.4 if number == torn else 1
        for at in range(copied.start, copied.stop, COPY_BYTES):
            if chance.random() < lost_share:
                size = min(COPY_BYTES, copied.stop - at)
                data[at : at + size] = bytes(size)


def tear_hole(disk: FaultyDisk, model: Model, flushed: int, seed: int) -> None:
    """Lose power so that some bytes after ``flushed`` are missing, and everything after them is present."""
    chance = random.Random(seed)
    end = model.pending[-1].end if model.pending else model.end
    start = chance.randrange(flushed, end) if flushed < end else flushed
    base = start - start % model.file_size
    path = f"{LOG}/{base:020d}"
    if disk.exists(path):
        disk.tear_hole(path, start - base, min(start - base + chance.randrange(1, 600), model.file_size))
    else:
        disk.tear(seed)


def remove_derived(disk: FaultyDisk, what: str) -> bool:
    """Delete a file or folder that can be rebuilt. Return False if it does not exist."""
    path = f"{ROOT}/{DERIVED[what]}"
    if not disk.exists(path) or (what == "identity" and not disk.exists(f"{path}.bak")):
        return False
    if disk.is_directory(path):
        disk.remove_tree(path)
    else:
        disk.remove(path)
    disk.sync_directory(ROOT)
    count_situation(f"{'queues' if what == 'queues' else what} removed")
    return True


def put_back(volumes: Mapping[str, FaultyVolume], kept: Sequence[tuple[str, bytes]], *, is_foreign: bool) -> set[str]:
    """Put copies of buffers beside the present ones, of another store if foreign. Return the volumes' paths."""
    for path, data in kept:
        piece, pieces = bytearray(data), volumes[path].pieces
        name = next(name for number in count(FIRST_FOREIGN_NUMBER) if (name := f"buffer-{number}") not in pieces)
        if is_foreign:
            piece[UUID_POSITION : UUID_POSITION + 16] = bytes(range(16))
            piece[CRC_POSITION : CRC_POSITION + 4] = crc32(piece[HEADER_POSITION:CRC_POSITION]).to_bytes(4, "big")
        pieces[name] = piece
    count_situation("foreign buffers put back" if is_foreign else "stale buffers put back", len(kept))
    return {path for path, _ in kept}


def undisturbed_log(
    disk: FaultyDisk, volumes: Mapping[str, FaultyVolume], clock: FakeClock, mode: Mode, traps: Traps
) -> dict[int, bytes] | None:
    """Return the log files after a recovery of a copy of disk and memory, without traps. None if it fails."""
    disk_copy = disk.copy()
    volume_copies = {path: volume.copy() for path, volume in volumes.items()}
    with traps.paused():
        store = make_store(disk_copy, volume_copies, clock, mode)
        try:
            store.open(is_flushing=False)
        except (StoreUnusable, StoreFull):
            return None
        return log_files(disk_copy)
