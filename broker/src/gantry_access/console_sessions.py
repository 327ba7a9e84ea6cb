"""Codes and sessions of the web console, by which a browser logs in without a token.

    gantry up / gantry console --- token ---> POST /v1/console/codes      a code: once, for ten minutes
         prints /console/#code=CODE
    the page -------------------- code  ---> POST /v1/console/sessions   a session: for this tab, for half a day

A sidecar keeps them for its own page. `gantry console` keeps its own ones for the browsers that it serves, and logs in
at a sidecar with a code and a session of that sidecar, which no browser gets.

A used code that is found later, in a terminal's history, a log or a pipe, grants nothing. A session has the permissions
of the token that requested the code, and ends with that token, at its expiry, and with this process. Codes and sessions
are random and are kept as digests, in memory only.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple, final

CODE_LIFETIME_S: Final = 600
SESSION_LIFETIME_S: Final = 12 * 3_600
CODES_MAX: Final = 16
"""Unused codes kept at a time; one more drops the oldest."""

SESSIONS_MAX: Final = 64
"""Sessions kept at a time, one per browser tab; one more drops the oldest, which has to log in again."""

SECRET_BYTES: Final = 24
"""The number of random bytes in a code or a session."""

SESSION_PREFIX: Final = "session-"
"""The beginning of a session, which separates it from a token."""


class Grant(NamedTuple):
    """The permissions behind a code or a session."""

    name: str
    """The name of the token that requested the code."""

    token_digest: bytes
    """The digest of that token, which must still be valid."""

    may_change: bool
    """Whether the token may give orders."""

    end_s: float
    """When the code or session expires, by the monotonic clock."""


@final
class ConsoleSessions:
    """The codes and sessions of one sidecar. Safe to use from any thread."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s: Final = now_s
        self._lock: Final = threading.Lock()
        self._codes: dict[bytes, Grant] = {}
        self._sessions: dict[bytes, Grant] = {}

    def __repr__(self) -> str:
        return f"<ConsoleSessions codes={len(self._codes)} sessions={len(self._sessions)}>"

    def new_code(self, name: str, token_digest: bytes, *, may_change: bool) -> str:
        """Return a new code, which can be exchanged once and has the permissions of its token."""
        code = secrets.token_urlsafe(SECRET_BYTES)
        with self._lock:
            _keep(self._codes, code, Grant(name, token_digest, may_change, self._now_s() + CODE_LIFETIME_S), CODES_MAX)
        return code

    def exchange(self, code: str) -> str | None:
        """Exchange a code for a session; None if the code is unknown, was used, or has expired.

        The code is removed before anything else, so it can never be used twice.
        """
        with self._lock:
            grant = self._codes.pop(_digest(code), None)
            if grant is None or grant.end_s <= self._now_s():
                return None
            session = SESSION_PREFIX + secrets.token_urlsafe(SECRET_BYTES)
            _keep(self._sessions, session, grant._replace(end_s=self._now_s() + SESSION_LIFETIME_S), SESSIONS_MAX)
        return session

    def grant_of(self, session: str) -> Grant | None:
        """Return the permissions of a session; None if it is unknown or has expired."""
        if not session.startswith(SESSION_PREFIX):
            return None
        digest = _digest(session)
        with self._lock:
            grant = self._sessions.get(digest)
            if grant is not None and grant.end_s <= self._now_s():
                del self._sessions[digest]
                return None
        return grant


def _keep(grants: dict[bytes, Grant], secret: str, grant: Grant, count_max: int) -> None:
    while len(grants) >= count_max:
        del grants[next(iter(grants))]
    grants[_digest(secret)] = grant


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
