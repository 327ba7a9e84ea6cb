"""Who may do what: one table, asked by every endpoint of both listeners.

    |                  | nobody | loopback, no token | read token | token, client certificate |
    | probes           |  yes   |  yes               |  yes       |  yes                      |
    | look             |  no    |  yes (1)           |  yes       |  yes                      |
    | read messages    |  no    |  with --open-reads |  yes       |  yes                      |
    | change           |  no    |  no                |  no (403)  |  yes                      |

(1) without any credentials set up, or with --open-reads. On loopback without a token, the Host header must be a name of
this machine: a page in somebody's browser that has its own name resolved to 127.0.0.1 is not on this machine. No
answer ever allows another origin, and no credential is a cookie, so a browser sends none by itself.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Final, NamedTuple, final

from gantry_admin.console_sessions import ConsoleSessions, Grant
from gantry_admin.credentials import TokenFile, token_digest
from gantry_admin.errors import Problem, SettingsError
from gantry_admin.settings import Address, SidecarSettings, parse_address

REFRESH_S: Final = 2.0
UNAUTHORIZED_HEADERS: Final = {"WWW-Authenticate": 'Bearer realm="gantry"'}


class Scope(Enum):
    """What an endpoint needs."""

    PROBE = "probe"
    LOOK = "look"
    READ = "read"
    CHANGE = "change"


class Caller(NamedTuple):
    """Who asks, as far as they have proven it."""

    name: str | None
    """Of their token or certificate."""
    may_change: bool


NOBODY: Final = Caller(None, False)


@final
class Guard:
    """The table above. Its answers may be asked for from any thread; its files are read in one."""

    def __init__(self, settings: SidecarSettings) -> None:
        """Raises ``SettingsError`` for a file that cannot be used."""
        access = settings.access
        self._writers: Final = None if access.token_file is None else TokenFile(access.token_file)
        self._readers: Final = None if access.read_token_file is None else TokenFile(access.read_token_file)
        self.sessions: Final = ConsoleSessions()
        own = settings.peers.token_file
        self._for_peers: Final = (self._readers or self._writers) if own is None else TokenFile(own)
        self._has_credentials: Final = access.has_credentials
        self._open_reads: Final = access.open_reads
        self._is_loopback: Final = settings.listen.is_loopback and settings.log_listen.is_loopback

    def __repr__(self) -> str:
        return f"<Guard credentials={self._has_credentials} loopback={self._is_loopback}>"

    def peer_token(self) -> str:
        """What is shown to peers now: their own file's, else a token of ours, the one that may do less first."""
        return "" if self._for_peers is None else self._for_peers.first

    def order_token(self) -> str:
        """By which whoever gives orders knows us: the first that may."""
        return "" if self._writers is None else self._writers.first

    def caller(self, authorization: str | None, certificate_subject: str | None) -> Caller:
        """Who that is. Raises ``Problem`` 401 for a token that is none of ours."""
        if certificate_subject is not None:
            return Caller(f"certificate:{certificate_subject}"[:200], True)
        if authorization is None:
            return NOBODY
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() == "bearer":
            for file, may_change in ((self._writers, True), (self._readers, False)):
                name = None if file is None else file.name_of(token.strip())
                if name is not None:
                    return Caller(f"token:{name}", may_change)
            grant = self.sessions.grant_of(token.strip())
            if grant is not None and self._knows(grant):
                return Caller(f"{grant.name} (console)", grant.may_change)
        raise Problem(401, "the token is not known", headers=UNAUTHORIZED_HEADERS)

    def new_console_code(self, caller: Caller, authorization: str | None) -> str:
        """A code that opens the console once with what ``caller`` may. Raises ``Problem`` 403 without a token."""
        _, _, token = (authorization or "").partition(" ")
        if caller.name is None or not caller.name.startswith("token:") or caller.name.endswith(" (console)"):
            raise Problem(403, "a code for the console is given to a token only")
        return self.sessions.new_code(caller.name, token_digest(token.strip()), may_change=caller.may_change)

    def _knows(self, grant: Grant) -> bool:
        """Whether the token behind a session is still ours, and still may what the session may."""
        files = (self._writers,) if grant.may_change else (self._readers, self._writers)
        return any(file is not None and file.knows(grant.token_digest) for file in files)

    def check(self, scope: Scope, caller: Caller, host: str | None) -> None:
        """Raises ``Problem`` 401 or 403."""
        if scope is Scope.PROBE or caller.may_change:
            return
        if scope is Scope.CHANGE:
            if caller.name is not None:
                raise Problem(403, "this token may look and change nothing")
            if not self._has_credentials:
                raise Problem(403, "nobody may change anything here: no --token-file and no --tls-client-ca was given")
            raise Problem(401, "a token is needed", headers=UNAUTHORIZED_HEADERS)
        if caller.name is not None:
            return
        if not self._is_open(scope):
            raise Problem(401, "a token is needed", headers=UNAUTHORIZED_HEADERS)
        if not is_own_name(host):
            raise Problem(403, "without a token the Host header must be a name of this machine")

    def _is_open(self, scope: Scope) -> bool:
        if not self._is_loopback:
            return False
        return self._open_reads or (scope is Scope.LOOK and not self._has_credentials)

    def refresh(self) -> None:
        """Read what has changed. Blocks: call it in a thread."""
        for file in {self._writers, self._readers, self._for_peers} - {None}:
            if file is not None:
                file.refresh()

    async def keep_fresh(self) -> None:
        """For as long as the sidecar runs."""
        while True:
            await asyncio.sleep(REFRESH_S)
            await asyncio.to_thread(self.refresh)


def is_own_name(host: str | None) -> bool:
    """Whether a Host header names this machine's loopback."""
    if not host:
        return False
    try:
        address = parse_address(host if _has_port(host) else f"{host}:80", "Host")
    except SettingsError:
        return False
    return Address(host=address.host.lower(), port=address.port).is_loopback


def _has_port(host: str) -> bool:
    return host.rpartition("]")[2].count(":") == 1 if host.startswith("[") else ":" in host
