"""Faults that no broker can repair, to prove that the checker detects them.

A checker that has never failed proves nothing. Each of these changes the log's files while the broker is down, or
removes a safeguard of the broker.
"""

from enum import Enum
from pathlib import Path

from crash.cells import COMMIT_INTERVAL_MS, COMMIT_PAGES
from crash.log_walk import log_files, walk_log


class Sabotage(Enum):
    """The damage to the log before the last restart, or the safeguard that the broker lacks at every start."""

    NONE = "none"
    CUT_TAIL = "cut-tail"
    """The second half of the messages is zeroed, as by a disk that lied about a flush."""
    FLIP_BIT = "flip-bit"
    """One bit of one body changes."""
    NO_REPLAY = "no-replay"
    """No start finds, and so none replays, the write buffers of the previous one."""
    NO_HOLD = "no-hold"
    """Messages that a crash may destroy are visible to consumers at once."""

    @property
    def guard(self) -> str | None:
        """The safeguard that the broker lacks, or None."""
        return {Sabotage.NO_REPLAY: "replay", Sabotage.NO_HOLD: "hold"}.get(self)

    @property
    def settings(self) -> dict[str, str]:
        """The settings that leave messages uncommitted so long that a kill can reveal the sabotage."""
        if self is not Sabotage.NO_HOLD:
            return {}
        late = str(5 * COMMIT_INTERVAL_MS)
        return {
            "commitIntervalCommitLog": late,
            "commitCommitLogThoroughInterval": late,
            "commitCommitLogLeastPages": str(max(COMMIT_PAGES)),
        }


def damage_log(store: Path, sabotage: Sabotage) -> None:
    """Damage the log's files, if this sabotage does so."""
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
    """Return the size of what follows the body in a record: topic length, topic, properties length, properties."""
    return 1 + len(topic) + 2 + len(properties)


def _write(store: Path, offset: int, data: bytes | None) -> None:
    """Write `data` at an offset of the log; None zeroes everything from there on."""
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
