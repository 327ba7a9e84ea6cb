"""Whether a group commit waits a moment for those who are on their way. Pure.

Senders that wait for the disk come again when they are answered. Without a pause the first of them starts the next sync
alone, and everybody behind it waits for that one and for another:

    sync of all but one | sync of one | sync of all but one | ...        half of them in a sync, on average
    sync of all | pause | sync of all | pause | ...                      nearly all, for the price of the pause

So after a sync that took time, the next one waits until nearly as much has been appended as was waiting when it ended,
but at most three quarters as long as it took: a slow disk gains a whole sync, and one that answers in less than a
millisecond is not waited for at all. Senders that come at their own pace, whether they were answered or not, gain
nothing by a pause; one that brings less than ``WORTH_SHARE`` of the missing is followed by ``REST_SYNCS`` without any.
"""

from __future__ import annotations

from typing import Final, final

PATIENCE_MS_MAX: Final = 10.0
"""However slow the disk is: by then whoever is alive has sent again."""
PATIENCE_SHARE: Final = 0.75
"""Of what the last sync took."""
EXPECTED_SHARE: Final = 0.9
"""Of what was waiting: somebody is always late, and the next bodies are somewhat smaller."""
WORTH_SHARE: Final = 0.6
"""Of what was missing. Senders at their own pace bring more to the first pause, which expects too little, and half to
the second; a broker that is short of CPU time still gets as much from those who were answered."""
REST_SYNCS: Final = 16


@final
class Gathering:
    """Owned by the thread that syncs."""

    def __init__(self) -> None:
        self._expected_bytes = 0
        self._patience_ms = 0.0
        self._rest = 0

    def __repr__(self) -> str:
        return f"<Gathering expected={self._expected_bytes} patience_ms={self._patience_ms} rest={self._rest}>"

    @property
    def patience_ms(self) -> float:
        """How long the pause may be."""
        return self._patience_ms

    def synced(self, waiting_bytes: int, took_ms: int) -> None:
        """A sync has ended: so much was appended and not flushed until then, counting what it flushed."""
        self._expected_bytes = int(waiting_bytes * EXPECTED_SHARE)
        self._patience_ms = min(took_ms * PATIENCE_SHARE, PATIENCE_MS_MAX)

    def wanted(self, dirty_bytes: int) -> int:
        """Up to how many unflushed bytes to wait; 0 to sync at once. Asked once before each sync."""
        if self._rest > 0:
            self._rest -= 1
            return 0
        is_worth_it = self._patience_ms > 0 and 0 < dirty_bytes < self._expected_bytes
        return self._expected_bytes if is_worth_it else 0

    def waited(self, dirty_before: int, dirty_after: int) -> None:
        """A pause has ended."""
        if dirty_after - dirty_before < (self._expected_bytes - dirty_before) * WORTH_SHARE:
            self._rest = REST_SYNCS
