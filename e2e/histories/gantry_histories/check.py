"""Check a history against the final contents of a group. The check is a pure function.

    acknowledged   stored, in its queue, at the offset and the place that the reply named, byte for byte
    refused        not stored
    unknown        stored once or not at all
    every queue    dense offsets; one producer's messages in the order of their sending
    every epoch    no older master acknowledges a send that starts after its first acknowledgement; its part of the log
                   has what its master acknowledged
    shown          stored in the end, and no message after the first one that the consumer received was skipped
    read           a master shows every message that it acknowledged before the request, if the mode has this guarantee
    committed      a master returns the offset that it confirmed last; no offset is beyond the end of its queue
    every member   the same bytes up to the confirmed position

With ``Loss.SUFFIX`` a failover may lose the end of the old master's log, from the start of the new epoch, and no more.
"""

from __future__ import annotations

from collections.abc import Iterator

from gantry_histories.events import History
from gantry_histories.final import Final, Piece
from gantry_histories.findings import Finding, Kind, Mode
from gantry_histories.sessions import find_forgotten_offsets, find_outdated_reads
from gantry_histories.shown import (
    find_invalid_deliveries,
    find_offsets_beyond_end,
    find_skipped_messages,
    find_skipping_replies,
    find_vanished_deliveries,
)
from gantry_histories.stored import (
    find_disordered_messages,
    find_foreign_messages,
    find_lost_messages,
    find_wrong_messages,
)
from gantry_histories.terms import TermIndex, find_stale_acknowledgements


def check(history: History, final: Final, mode: Mode) -> list[Finding]:
    """Return a finding for every broken guarantee. The list is empty if all of them hold."""
    return list(_findings(history, final, mode))


def _findings(history: History, final: Final, mode: Mode) -> Iterator[Finding]:
    terms = TermIndex(history.terms)
    yield from find_wrong_messages(history, final)
    yield from find_lost_messages(history, final, mode, terms)
    yield from find_disordered_messages(history, final)
    yield from find_stale_acknowledgements(history, terms)
    yield from find_foreign_messages(history, final, terms)
    yield from find_invalid_deliveries(history)
    yield from find_vanished_deliveries(history, final, mode, terms)
    yield from find_skipped_messages(history, final, mode, terms)
    yield from find_skipping_replies(history, final)
    if mode.shows_acknowledged:
        yield from find_outdated_reads(history, terms)
    yield from find_forgotten_offsets(history, terms)
    yield from find_offsets_beyond_end(final)
    yield from find_diverged_logs(final)


def find_diverged_logs(final: Final) -> Iterator[Finding]:
    """Find ranges of the log that two members have summed differently."""
    first: dict[tuple[int, int], tuple[str, Piece]] = {}
    for log in final.logs:
        for piece in log.pieces:
            member, other = first.setdefault((piece.start, piece.end), (log.member, piece))
            if other.crc != piece.crc:
                where = f"from {piece.start} to {piece.end}"
                sums = f"{member} has {other.crc:08x}, {log.member} {piece.crc:08x}"
                yield Finding(Kind.DIVERGED, f"{where} {sums}")
                break
