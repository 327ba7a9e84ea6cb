"""Where following a Java master begins, and with which history: a pure decision.

    own log      [begin ------------------------------ end)
    master's log      [begin ------------------------------------- end)
                                     |--- compared ---|--- copied --->

The stream has no handshake, but a slave may ask for any offset. So we ask for the last bytes that we have already and
compare them as they come: whoever has the same has all that came before them. What then follows was not written by us,
and the list of epochs says so, so that nobody demands seals of it.

An empty disk gets the whole log. RocketMQ's master takes an offset of 0 for "the last file is enough", so the copy
begins at 1 if the log begins at 0, and the first byte is put before it here. It is the high byte of a record's length,
always zero; if not, the first record's checks would say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gantry_broker.ha.fork import TAIL_BYTES
from gantry_broker.ha.history import CannotFollow, History
from gantry_broker.store.identity import Epoch


class MasterRange(NamedTuple):
    """What the master says of its log."""

    begin: int
    end: int


class Start(NamedTuple):
    """How to begin."""

    request: int
    """The first offset that is asked for."""

    end: int
    """Up to where our log is there already, and is compared."""

    epochs: list[Epoch]
    is_restart: bool = False
    """Whether all of our log goes first, and begins anew at ``end``."""


def plan_start(own: History, master: MasterRange, file_bytes: int) -> Start:
    """Raises ``CannotFollow``."""
    if master.begin % file_bytes:
        text = f"the master's log begins at {master.begin}, where no file of {file_bytes} bytes does"
        raise CannotFollow(f"{text}: mappedFileSizeCommitLog must be the same")
    is_empty = own.begin == own.end
    if is_empty or (own.end < master.begin and not _is_tail_ours(own)):
        is_restart = own.end != master.begin
        return Start(master.begin or 1, master.begin, foreign_epochs(own.epochs, master.begin, is_restart), is_restart)
    ours = f"this log is {own.begin} to {own.end}"
    if own.end > master.end:
        raise CannotFollow(f"{ours}, and the master's {master.begin} to {master.end}: it has not got what is here")
    request = max(own.begin, master.begin, own.end - TAIL_BYTES)
    if own.end <= master.begin and _is_tail_ours(own):
        raise CannotFollow(f"{ours}, written here, and the master's log begins at {master.begin} only")
    return Start(request or 1, own.end, foreign_epochs(own.epochs, own.end))


def foreign_epochs(epochs: Sequence[Epoch], end: int, is_restart: bool = False) -> list[Epoch]:
    """The history of a log that somebody else goes on with at ``end``. Epochs in which nothing was written go."""
    kept = [] if is_restart else [epoch for epoch in epochs if epoch.start < end]
    if not kept or kept[-1].is_ours:
        kept.append(Epoch(max((epoch.epoch for epoch in epochs), default=0) + 1, end, is_ours=False))
    return kept


def _is_tail_ours(own: History) -> bool:
    """Whether a Gantry master wrote what is at the end."""
    written = [epoch for epoch in own.epochs if epoch.start < own.end]
    return bool(written) and written[-1].is_ours
