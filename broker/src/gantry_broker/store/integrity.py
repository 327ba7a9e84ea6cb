"""What is known of damage to a store's log, in one look. The names are those of the status page."""

from __future__ import annotations

from typing import NamedTuple


class Integrity(NamedTuple):
    """See ``LogGuard`` and ``Scrubber``. Counts are since the start."""

    damaged_records: int = 0
    damaged_bytes: int = 0
    damaged_records_found: int = 0
    healed_records: int = 0
    lost_records: int = 0
    scrub_position: int = 0
    scrubbed_bytes: int = 0
    scrub_pass_ended_wall_ms: int = 0
