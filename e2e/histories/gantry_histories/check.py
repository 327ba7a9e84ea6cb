"""Were the promises kept? A pure function of a history and of what a group holds in the end.

    acknowledged   there, in its queue, at the offset and the place that the reply named, byte for byte
    refused        not there
    unknown        there once or not at all
    every queue    dense offsets; one producer's messages in the order of their sending
    every epoch    nobody older acknowledges what starts after its first acknowledgement
    shown          there in the end, and nothing before it was left out
    every member   the same bytes up to where the log is confirmed

With ``Loss.SUFFIX`` a failover may take the end of the old master's log, from where the new epoch begins: nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator

from gantry_histories.events import History
from gantry_histories.final import Final, Piece
from gantry_histories.findings import Finding, Kind, Mode
from gantry_histories.reigns import Reigns, find_stale
from gantry_histories.shown import find_beyond, find_false, find_skipped, find_vanished
from gantry_histories.stored import find_disorder, find_lost, find_wrong_messages


def check(history: History, final: Final, mode: Mode) -> list[Finding]:
    """Every broken promise; empty when all were kept."""
    return list(_findings(history, final, mode))


def _findings(history: History, final: Final, mode: Mode) -> Iterator[Finding]:
    reigns = Reigns(history.reigns)
    yield from find_wrong_messages(history, final)
    yield from find_lost(history, final, mode, reigns)
    yield from find_disorder(history, final)
    yield from find_stale(history, reigns)
    yield from find_false(history)
    yield from find_vanished(history, final, mode, reigns)
    yield from find_skipped(history, final, mode, reigns)
    yield from find_beyond(final)
    yield from find_diverged(final)


def find_diverged(final: Final) -> Iterator[Finding]:
    """Wherever two members have summed the same range, the sums are the same."""
    first: dict[tuple[int, int], tuple[str, Piece]] = {}
    for log in final.logs:
        for piece in log.pieces:
            member, other = first.setdefault((piece.start, piece.end), (log.member, piece))
            if other.crc != piece.crc:
                where = f"from {piece.start} to {piece.end}"
                sums = f"{member} has {other.crc:08x}, {log.member} {piece.crc:08x}"
                yield Finding(Kind.DIVERGED, f"{where} {sums}")
                break
