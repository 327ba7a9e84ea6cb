"""Faults that no broker can mend, to show that the checker sees them.

A checker that has never failed proves nothing. Each of these changes the log's files while the broker is down, behind
everybody's back, or takes a guard from the broker.
"""

from enum import Enum
from pathlib import Path

from crash.cells import COMMIT_INTERVAL_MS, COMMIT_PAGES
from crash.log_walk import log_files, walk_log


class Sabotage(Enum):
    """What is done to the log before the last restart, or to the broker at every one."""

    NONE = "none"
    CUT_TAIL = "cut-tail"
    """The second half of the messages is zeroed, as a disk that lied about a flush would have it."""
    FLIP_BIT = "flip-bit"
    """One bit of one body changes."""
    NO_REPLAY = "no-replay"
    """No start finds the write buffers of the one before it."""
    NO_HOLD = "no-hold"
    """Consumers are shown at once what a crash may take back."""

    @property
    def guard(self) -> str | None:
        """What the broker is without."""
        return {Sabotage.NO_REPLAY: "replay", Sabotage.NO_HOLD: "hold"}.get(self)

    @property
    def settings(self) -> dict[str, str]:
        """Settings with which any kill reveals the sabotage."""
        if self is not Sabotage.NO_HOLD:
            return {}
        late = str(5 * COMMIT_INTERVAL_MS)
        return {
            "commitIntervalCommitLog": late,
            "commitCommitLogThoroughInterval": late,
            "commitCommitLogLeastPages": str(max(COMMIT_PAGES)),
        }


def spoil_log(store: Path, sabotage: Sabotage) -> None:
    """Do it, as far as it is done to files."""
    if sabotage not in (Sabotage.CUT_TAIL, Sabotage.FLIP_BIT):
        return
    messages = list(walk_log(store))
    victim = messages[len(messages) // 2]
    if sabotage is Sabotage.CUT_TAIL:
        _write(store, victim.physical_offset, None)
    else:
        record_end = victim.physical_offset + victim.size
        body_at = record_end - _tail_bytes(victim.topic, victim.properties_bytes) - len(victim.body)
        _write(store, body_at, bytes((victim.body[0] ^ 1,)))


def _tail_bytes(topic: str, properties: bytes) -> int:
    """What follows a body in a record with a short topic: its length, the topic, a length, the properties."""
    return 1 + len(topic) + 2 + len(properties)


def _write(store: Path, offset: int, data: bytes | None) -> None:
    """Write `data` at a place of the log; None zeroes everything from there on."""
    for path in log_files(store):
        base, size = int(path.name), path.stat().st_size
        if base + size <= offset:
            continue
        position = max(0, offset - base)
        with path.open("r+b") as file:
            file.seek(position)
            file.write(bytes(size - position) if data is None else data)
        if data is not None:
            return
