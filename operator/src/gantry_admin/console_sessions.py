"""How a browser gets into the console without ever seeing a token.

    gantry up / gantry console --- token ---> POST /v1/console/codes      a code: once, for ten minutes
         prints /console/#code=CODE
    the page -------------------- code  ---> POST /v1/console/sessions   a session: for this tab, for half a day

A code that is found later, in a terminal's history, a log or a pipe, opens nothing. A session may what the token might
that asked for the code, and ends with that token, with its time, and with this process. Both are random and kept as
digests, in memory only.
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
"""Codes that wait to be used; beyond it the oldest is forgotten."""

SESSIONS_MAX: Final = 64
"""Tabs that are open; beyond it the oldest is forgotten, and has to come again."""

SECRET_BYTES: Final = 24
SESSION_PREFIX: Final = "session-"


class Grant(NamedTuple):
    """What a code or a session stands for."""

    name: str
    """Of the token that asked for the code."""

    token_digest: bytes
    may_change: bool
    end_s: float


@final
class ConsoleSessions:
    """Codes and sessions of one sidecar. Any thread may ask."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s: Final = now_s
        self._lock: Final = threading.Lock()
        self._codes: dict[bytes, Grant] = {}
        self._sessions: dict[bytes, Grant] = {}

    def __repr__(self) -> str:
        return f"<ConsoleSessions codes={len(self._codes)} sessions={len(self._sessions)}>"

    def new_code(self, name: str, token_digest: bytes, *, may_change: bool) -> str:
        """A code that can be exchanged once. It may what its token may."""
        code = secrets.token_urlsafe(SECRET_BYTES)
        with self._lock:
            _keep(self._codes, code, Grant(name, token_digest, may_change, self._now_s() + CODE_LIFETIME_S), CODES_MAX)
        return code

    def exchange(self, code: str) -> str | None:
        """The session for a code; None when it is unknown, was used, or has expired. Using it up comes first."""
        with self._lock:
            grant = self._codes.pop(_digest(code), None)
            if grant is None or grant.end_s <= self._now_s():
                return None
            session = SESSION_PREFIX + secrets.token_urlsafe(SECRET_BYTES)
            _keep(self._sessions, session, grant._replace(end_s=self._now_s() + SESSION_LIFETIME_S), SESSIONS_MAX)
        return session

    def grant_of(self, session: str) -> Grant | None:
        """What a session may, as long as it lasts."""
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
