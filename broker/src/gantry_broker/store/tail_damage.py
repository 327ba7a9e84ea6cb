"""Search for damage in the part of the log that is in no queue yet.

Dispatch checks lengths only. A damaged queue or queue offset would put a message into a wrong place, so here every byte
is verified, before a store becomes a master's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gantry_broker.store.recovery import Seals
from gantry_wire.message import RecordFault, check_record


def find_damage(
    parts: Iterable[tuple[int, memoryview, int]],
    seals: Seals,
    is_blank: Callable[[int], bool],
    end_of_damage: Callable[[int], int],
) -> list[int]:
    """Return where damaged records begin in these parts of the log: offset, bytes from there on, end."""
    found: list[int] = []
    for base, view, stop in parts:
        offset = base
        while offset < stop and not is_blank(offset):
            is_sealed, _ = seals(offset)
            check = check_record(view, offset - base, physical_offset=offset, is_sealed=is_sealed)
            if check.is_good or check.fault is RecordFault.BLANK:
                offset += check.size
            else:
                found.append(offset)
                offset = max(offset + 1, end_of_damage(offset))
    return found
