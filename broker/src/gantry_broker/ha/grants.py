"""Whether a master may still acknowledge where no slave's ack is needed for that: grants, on a clock that never stops.

    a master of an asynchronous group answers 0 only while it holds one of two keys:
    1  a short grant from every electable slave, renewed with its acks
    2  the shard's Lease, of which its sidecar tells it

A promotion ends both first: one slave that has promised a newer epoch grants nothing any more, and the Lease goes to
somebody else. So neither an unreachable API server nor a dead slave nor a dead sidecar alone stops anybody. A grant
counts from when the master *sent* the beat that it answers, which is before the slave began to keep it: whatever the
network does, the master stops first. The clock must go on while the machine sleeps (``CLOCK_BOOTTIME``).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, final

MARGIN_SHARE: Final = 0.1
"""Of a grant, given away for clocks that do not run alike."""


@final
class Grants:
    """What one master was granted, by whom, until when. All times are of its own boot-time clock, in milliseconds."""

    def __init__(self, electable: Collection[str]) -> None:
        self.electable: Final = frozenset(electable)
        """Who may be promoted, by identity. With nobody there is nobody to fear."""

        self._until_ms: dict[str, int] = {}
        self._lease_until_ms = -1

    def granted(self, identity: str, sent_ms: int, grant_ms: int) -> None:
        """A slave has answered the beat that was sent at ``sent_ms``. A grant of 0 takes back what it gave."""
        if grant_ms <= 0:
            self._until_ms.pop(identity, None)
            return
        until_ms = sent_ms + int(grant_ms * (1 - MARGIN_SHARE))
        self._until_ms[identity] = max(until_ms, self._until_ms.get(identity, -1))

    def leased(self, renewed_ms: int, duration_ms: int) -> None:
        """The Lease was renewed by a request that was sent at ``renewed_ms``; a duration of 0 gives it back."""
        self._lease_until_ms = renewed_ms + int(duration_ms * (1 - MARGIN_SHARE)) if duration_ms > 0 else -1

    def may_acknowledge(self, now_ms: int) -> bool:
        """Whether one of the keys is held right now. To be asked just before each answer."""
        return now_ms < self.until_ms

    @property
    def until_ms(self) -> int:
        """Up to when a key is held."""
        if not self.electable:
            return 1 << 62
        by_slaves = min(self._until_ms.get(identity, -1) for identity in self.electable)
        return max(by_slaves, self._lease_until_ms)

    def missing(self, now_ms: int) -> list[str]:
        """Whose grants are over, for the status."""
        return sorted(identity for identity in self.electable if self._until_ms.get(identity, -1) <= now_ms)


@final
class GivenGrants:
    """The other side: until when what a slave has granted may count, on its own boot-time clock, in milliseconds.

    Whoever promotes somebody waits for that. A slave that was started again does not know when its last process granted
    last: a moment ago, as far as it can tell. So how long a master wants its grants is on the slave's disk before the
    first of them is given.
    """

    def __init__(self) -> None:
        self._grant_ms = 0
        self._until_ms = -1

    def started(self, grant_ms: int, now_ms: int) -> None:
        """This process begins; the last one may have granted for so long until now."""
        self._grant_ms = grant_ms
        self.given(now_ms)

    def welcomed(self, grant_ms: int) -> None:
        """A master wants grants of so long from now on; 0 for none."""
        self._grant_ms = grant_ms

    def given(self, now_ms: int) -> None:
        """One is given, or just was."""
        if self._grant_ms > 0:
            self._until_ms = max(self._until_ms, now_ms + self._grant_ms)

    def rest_ms(self, now_ms: int) -> int:
        """For how much longer one may count."""
        return max(0, self._until_ms - now_ms)
