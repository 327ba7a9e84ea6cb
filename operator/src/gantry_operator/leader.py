"""Who of several operators acts: a Lease, as a state machine without I/O. At most one believes, at any moment.

    holder   writes ------------ and believes until  sent + renew_deadline
    taker    reads the same revision ... for a whole duration, on its own clock, and writes onto just that revision

A write changes the revision, so a taker that waited out a revision has waited at least a whole duration since the write
behind it was *sent*, and its holder has stopped believing before: ``renew_deadline_ms < duration_ms`` is the margin, in
which clocks may run at different speeds. No clock is ever compared with another, and nothing in the Lease is believed
but its revision and its holder. A write that was not answered may have been done: it makes nobody believe.

Losing it is final: whoever believed no more must end its process, since what it began may still be under way. Even so
nothing depends on this alone: every change that is made in a cluster has preconditions, and every order an epoch.
"""

from __future__ import annotations

from typing import Final, NamedTuple, final


class Terms(NamedTuple):
    """How long what counts."""

    duration_ms: int = 15_000
    """For how long nobody takes what was renewed."""

    renew_deadline_ms: int = 10_000
    """For how long its holder believes."""

    retry_ms: int = 2_000
    """Between two tries of anything."""


TERMS: Final = Terms()


class SeenLease(NamedTuple):
    """What a read, or a write that was answered, has shown."""

    revision: str
    holder: str
    """Empty if it was given back."""


class Write(NamedTuple):
    """Write our name onto just this revision; None makes the first one."""

    revision: str | None
    is_release: bool = False


class Read(NamedTuple):
    """Look at it."""


class Sleep(NamedTuple):
    """Nothing until then."""

    until_ms: int


Step = Read | Write | Sleep


@final
class Candidate:
    """One operator's part. Told what happened, it says what to do next; times are of its own clock."""

    def __init__(self, name: str, terms: Terms = TERMS) -> None:
        assert name, "an empty holder is nobody"
        assert terms.retry_ms < terms.renew_deadline_ms < terms.duration_ms, "the margin that everything rests on"
        self.name: Final = name
        self.terms: Final = terms
        self._seen: SeenLease | None = None
        self._is_known = False
        self._first_seen_ms = 0
        self._believes_until_ms: int | None = None
        self._tried_ms: int | None = None

    def __repr__(self) -> str:
        return f"<Candidate {self.name} until={self._believes_until_ms}>"

    @property
    def was_leader(self) -> bool:
        """Whether it ever was."""
        return self._believes_until_ms is not None

    def is_leader(self, now_ms: int) -> bool:
        """Whether nobody else can be, now."""
        return self._believes_until_ms is not None and now_ms < self._believes_until_ms

    def is_lost(self, now_ms: int) -> bool:
        """Whether it was the leader, and may be no more. Then the process ends."""
        return self.was_leader and not self.is_leader(now_ms)

    # -- what happened -------------------------------------------------------------------------------------------------

    def read(self, lease: SeenLease | None, answered_ms: int) -> None:
        """A read was answered; None if there is no Lease."""
        if not self._is_known or lease != self._seen:
            self._first_seen_ms = answered_ms
        self._seen, self._is_known = lease, True
        if lease is None or not lease.holder:
            self._tried_ms = None  # it is nobody's: the write need not wait for its turn

    def written(self, lease: SeenLease, sent_ms: int, answered_ms: int) -> None:
        """A write of ours was answered: it was done."""
        self._seen, self._is_known, self._first_seen_ms = lease, True, answered_ms
        if lease.holder == self.name:
            self._believes_until_ms = sent_ms + self.terms.renew_deadline_ms

    def failed(self) -> None:
        """A write was refused, or not answered: how it stands is not known, and is to be read."""
        self._is_known = False

    # -- what to do ----------------------------------------------------------------------------------------------------

    def next(self, now_ms: int) -> Step:
        """What to do now. Whoever does it, however late, tells what came of it."""
        if self._tried_ms is not None and now_ms < self._tried_ms + self.terms.retry_ms:
            return Sleep(self._tried_ms + self.terms.retry_ms)
        self._tried_ms = now_ms
        if not self._is_known:
            return Read()
        seen = self._seen
        if seen is None:
            return Write(None)
        if seen.holder == self.name:
            return Write(seen.revision)
        if not seen.holder or now_ms - self._first_seen_ms >= self.terms.duration_ms:
            self._is_known = False
            return Write(seen.revision)
        return Read()

    def release(self) -> Write | None:
        """Give it back, once nothing is under way any more; None if it is not ours to give."""
        if self._seen is None or self._seen.holder != self.name or not self._is_known:
            return None
        return Write(self._seen.revision, is_release=True)
