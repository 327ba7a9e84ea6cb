"""What a start would do to a store, as values."""

from __future__ import annotations

from dataclasses import dataclass, field

from gantry_broker.store.loss import LostRange


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedReplay:
    """One write buffer, and what becomes of it."""

    buffer: str
    start: int
    end: int
    records: int
    action: str
    """``replay``, ``set aside`` or ``nothing``."""

    reason: str = ""


@dataclass(slots=True, kw_only=True)
class RepairPlan:
    """What the next start would do."""

    root: str
    is_in_use: bool
    is_clean: bool
    refusal: str = ""
    """Why a start would refuse; empty if it would not."""

    read_from: int = 0
    is_full: bool = False
    """Whether the whole log is read."""

    read_bytes: int = 0
    records: int = 0
    """Records that would be read and dispatched again."""

    end: int = 0
    """Where the log would end."""

    cut_bytes: int = 0
    cut_records: int = 0
    """Whole records among them, which go with the tail."""

    rotten: list[tuple[int, int]] = field(default_factory=list)
    """Half-open ranges that would be reported and stepped over."""

    lost_flushed_bytes: int = 0
    """Bytes that had been flushed and are gone."""

    missing: list[LostRange] = field(default_factory=list)
    """Ranges of the log that were on the disk and are gone: no sends are taken before an operator accepts it."""

    lost_bytes: int = 0
    lost_messages: int = 0
    """Messages that queues still know and that will not be there. A lower bound where the queues are damaged, too."""

    queues_rebuilt: list[tuple[str, int]] = field(default_factory=list)
    queues_behind: list[tuple[str, int, int]] = field(default_factory=list)
    """Topic, queue id, how many units would be put again."""

    is_index_rebuilt: bool = False
    buffers: list[PlannedReplay] = field(default_factory=list)
    buffers_path: str = ""
    buffers_fault: str = ""

    @property
    def is_lossless(self) -> bool:
        return not (self.rotten or self.lost_flushed_bytes or self.lost_messages or self.missing)
