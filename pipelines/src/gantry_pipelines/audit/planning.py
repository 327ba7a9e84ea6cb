"""Plan the chunks of a broker from the states of its copies. Pure.

    A   [ begin ................................................ end )
    B             [ begin ........................... end )
        [ A alone ][ chunk ][ chunk ][ chunk: A and B  ][ A alone  ]
          note      compared                              note

What one copy has alone is in chunks, too: its records and units are checked, and only the comparison is left out.
Chunks end at multiples of their size, wherever the audit begins, so that a range has the same chunks in each audit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, final

from gantry_pipelines.audit.copies import CopyState
from gantry_pipelines.audit.model import Chunk, Span

CHUNK_BYTES_DEFAULT: Final = 64 << 20
"""The default size of a chunk, in bytes."""


@final
@dataclass(frozen=True, slots=True)
class BrokerPlan:
    """The chunks of one broker, and notes on what cannot be compared."""

    broker: str
    chunks: tuple[Chunk, ...]
    compared: Span
    """The span that all copies have."""
    notes: tuple[str, ...] = ()


def plan_broker(
    broker: str, states: Mapping[int, CopyState], order: tuple[int, ...], chunk_bytes: int, start: int = 0
) -> BrokerPlan:
    """Plan the chunks of one broker, from `start` on. `order`: the copies in the order in which they are trusted."""
    edges = sorted({edge for state in states.values() for edge in state.span})
    begin = max(state.span.begin for state in states.values())
    end = min(state.span.end for state in states.values())
    begin = max(begin, start)
    compared = Span(begin, max(end, begin))
    chunks: list[Chunk] = []
    for low, high in pairwise(edges):
        numbers = tuple(number for number in order if number in states and _covers(states[number], low, high))
        if numbers:
            log_begin = min(states[number].span.begin for number in numbers)
            pieces = split_span(Span(max(low, start), high), chunk_bytes)
            chunks += [Chunk(broker, piece, numbers, log_begin) for piece in pieces]
    return BrokerPlan(broker, tuple(chunks), compared, tuple(_notes(broker, states, compared)))


def split_span(span: Span, chunk_bytes: int) -> list[Span]:
    """Split a span into pieces that end at multiples of their size."""
    pieces: list[Span] = []
    begin = span.begin
    while begin < span.end:
        end = min((begin // chunk_bytes + 1) * chunk_bytes, span.end)
        pieces.append(Span(begin, end))
        begin = end
    return pieces


def _covers(state: CopyState, begin: int, end: int) -> bool:
    return state.span.begin <= begin and end <= state.span.end


def _notes(broker: str, states: Mapping[int, CopyState], compared: Span) -> list[str]:
    """Return the notes on what only some of the copies have."""
    notes: list[str] = []
    for number, state in sorted(states.items()):
        name = f"{broker}:{number}"
        notes += [f"{name}: {note}" for note in state.notes]
        if len(states) < 2:
            continue
        before = min(compared.begin, state.span.end) - state.span.begin
        if before > 0:
            notes.append(
                f"{name}: the first {before} bytes, from {state.span.begin}, are deleted on another copy: not compared"
            )
        after = state.span.end - max(compared.end, state.span.begin)
        if after > 0:
            notes.append(
                f"{name}: the last {after} bytes, up to {state.span.end}, are not confirmed on every copy: not compared"
            )
    if len(states) < 2:
        notes.append(
            f"{broker}: only one copy; it is checked by its own checksums and queues, and compared with no other"
        )
    elif not compared.length:
        notes.append(f"{broker}: the copies have no common range yet: not compared")
    return notes
