"""The last word of each shard's newest master, kept over its death and over that of whoever supervises.

How much a promotion may lose, where no acknowledgement waits for slaves, is counted from it: what the master had
written when it was heard last. Without a last word nobody knows, and nothing moves by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final, final

from gantry_cli.local.clock import machine_boot
from gantry_cli.local.member import LocalMember
from gantry_cli.local.state import GroupState
from gantry_spec.observed import LastWord, Report, Role


@final
class LastWords:
    """Of one supervisor."""

    def __init__(self, state: GroupState) -> None:
        """Those that are known. Raises CliError when they are damaged."""
        self._state: Final = state
        self._machine_boot: Final = machine_boot()
        self._words: Final = state.read_words(self._machine_boot)

    def of(self, shard: int) -> LastWord | None:
        """Of its newest master."""
        return self._words.get(shard)

    def keep(self, members: Iterable[LocalMember]) -> None:
        """After a look."""
        before = dict(self._words)
        for member in members:
            report, shard = member.report, member.record.shard
            if report is not None and report.role is Role.MASTER:
                word, known = _word(report), self._words.get(shard)
                if known is None or (word.epoch, word.asked_ms) > (known.epoch, known.asked_ms):
                    self._words[shard] = word
        if self._words != before:
            with suppress(OSError):  # whoever comes next then knows less of what may be lost, and promises less
                self._state.write_words(self._machine_boot, self._words)


def _word(report: Report) -> LastWord:
    return LastWord(
        epoch=report.epoch,
        boot_id=report.boot_id,
        epoch_start=report.epoch_start,
        wrote=report.wrote,
        peak_bytes_per_s=report.peak_bytes_per_s,
        asked_ms=report.asked_ms,
    )
