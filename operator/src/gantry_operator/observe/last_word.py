"""The last word of a master, kept in an annotation of the shard's Lease, so that it outlives the operator's process.

    gantry.dev/last-word: {"epoch":3000,"boot_id":"...","epoch_start":0,"wrote":73000,"peak":2000,"at":"2026-..."}

Where no acknowledgement waits for slaves, what a promotion may lose is counted from it. So it is written only there,
and only when it says something new, at most every ``WRITE_MS``: two calls a minute for a shard under load, none at
rest. A word that is too old makes the count larger, never smaller. Its time is of the wall clock of the machine that
wrote it; ``SKEW_MS`` stands for how far two such clocks may be apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Final, final

import msgspec

from gantry_operator.clock import Clock, moment_of
from gantry_spec.lease_annotations import lease_time
from gantry_spec.manifest.group import API_GROUP
from gantry_spec.observed import LastWord

LAST_WORD: Final = f"{API_GROUP}/last-word"
WRITE_MS: Final = 30_000
SKEW_MS: Final = 10_000


@final
class KeptLastWord(msgspec.Struct, frozen=True, kw_only=True):
    """The last word in an annotation."""

    epoch: int
    at: str
    boot_id: str = ""
    epoch_start: int | None = None
    wrote: int | None = None
    peak: int | None = None


def last_word_text(word: LastWord, clock: Clock) -> str:
    """The annotation to write now."""
    age = timedelta(milliseconds=clock.now_ms() - word.asked_ms)
    kept = KeptLastWord(
        epoch=word.epoch,
        at=lease_time(clock.wall() - age),
        boot_id=word.boot_id,
        epoch_start=word.epoch_start,
        wrote=word.wrote,
        peak=word.peak_bytes_per_s,
    )
    return msgspec.json.encode(kept).decode()


def last_word_of(annotations: Mapping[str, str], clock: Clock) -> LastWord | None:
    """The last word that was written, with its time on our clock, never in the future; None if it cannot be read."""
    try:
        kept = msgspec.json.decode(annotations.get(LAST_WORD, ""), type=KeptLastWord)
    except msgspec.DecodeError:
        return None
    at = moment_of(kept.at)
    if at is None:
        return None
    age_ms = max(0, int((clock.wall() - at).total_seconds() * 1000))
    return LastWord(
        epoch=kept.epoch,
        asked_ms=clock.now_ms() - age_ms - SKEW_MS,
        boot_id=kept.boot_id,
        epoch_start=kept.epoch_start,
        wrote=kept.wrote,
        peak_bytes_per_s=kept.peak,
    )


def is_news(word: LastWord, annotations: Mapping[str, str]) -> bool:
    """Whether the annotation differs from this word in more than the time."""
    try:
        kept = msgspec.json.decode(annotations.get(LAST_WORD, ""), type=KeptLastWord)
    except msgspec.DecodeError:
        return True
    return (kept.epoch, kept.wrote, kept.peak) != (word.epoch, word.wrote, word.peak_bytes_per_s)
