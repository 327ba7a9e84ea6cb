"""Counts and findings of a fuzz run, each finding with what is needed to reproduce it."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from gantry_wire import RequestCode, ResponseCode

NOT_SUPPORTED: Final = int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
FINDINGS_MAX: Final = 50


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault that was observed in a session."""

    target: str
    """The name of the server: broker or nameserver."""
    session: int | None
    """The number of the session; None for a finding about the whole run."""
    text: str

    def __str__(self) -> str:
        where = self.target if self.session is None else f"{self.target} session {self.session}"
        return f"{where}: {self.text}"


@dataclass(slots=True)
class Tally:
    """Counts and findings of all sessions against one server. Owned by its event loop."""

    target: str
    """The name of the server: broker or nameserver."""
    frames: int = 0
    without_reply: int = 0
    """Frames that parse and need no reply: one-way requests, and replies without a request."""
    sessions: int = 0
    bytes_sent: int = 0
    closed_by_server: int = 0
    """Connections that the server had to close for a frame that breaks the protocol."""
    lost_at_close: int = 0
    """Answers that were due when a frame broke the protocol; they may be lost with the connection."""
    held: int = 0
    """Requests, most of them held pulls, that had no answer when their connection ended, and might wait for it."""
    notices: int = 0
    """Requests of the server to the client."""
    parsed: Counter[int] = field(default_factory=Counter)
    """Frames that parse, by request code."""
    answered: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Replies, by (request code, reply code)."""
    kinds: Counter[str] = field(default_factory=Counter)
    """Mutations, by kind."""
    deleted_topics: set[str] = field(default_factory=set)
    """Topics whose deletion was requested, whose queues are not checked."""
    findings: list[Finding] = field(default_factory=list)

    def find(self, session: int | None, text: str) -> None:
        """Keep a finding, up to a maximum number."""
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(Finding(self.target, session, text))

    @property
    def handled(self) -> int:
        """Return the number of replies of handlers: all but "not supported". One-way requests are not counted."""
        return sum(count for (_, reply), count in self.answered.items() if reply != NOT_SUPPORTED)

    @property
    def replies(self) -> Counter[int]:
        totals: Counter[int] = Counter()
        for (_, reply), count in self.answered.items():
            totals[reply] += count
        return totals

    @property
    def codes_parsed(self) -> set[int]:
        """Known request codes of which at least one frame parsed."""
        return {code for code in self.parsed if code in RequestCode.__members__.values()}

    def by_request(self) -> list[tuple[int, int, int, Counter[int]]]:
        """Return (request code, parsed, answered by a handler, replies) of every code that occurred."""
        rows: list[tuple[int, int, int, Counter[int]]] = []
        for code in sorted(self.parsed):
            replies = Counter({reply: count for (asked, reply), count in self.answered.items() if asked == code})
            rows.append((code, self.parsed[code], replies.total() - replies[NOT_SUPPORTED], replies))
        return rows
