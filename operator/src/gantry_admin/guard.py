"""Access control: one table of permissions, which every endpoint of both listeners checks.

The files of the console, and with --openapi the OpenAPI document and its page, are open to all callers.

    |                  | anonymous | loopback, no token | read token | token, client certificate |
    | probes           |  yes      |  yes               |  yes       |  yes                      |
    | view             |  no       |  yes (1)           |  yes       |  yes                      |
    | read messages    |  no       |  with --open-reads |  yes       |  yes                      |
    | change           |  no       |  no                |  no (403)  |  yes                      |

(1) if no credentials are configured, or with --open-reads. "loopback" means that both listeners have loopback
addresses. Without a token, the Host header must then be a name of loopback, which defeats DNS rebinding: a website that
lets its own name resolve to 127.0.0.1 is refused. No answer ever allows another origin, and no credential is a cookie,
so a browser sends none by itself.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Final, NamedTuple, final

from gantry_access.console_sessions import ConsoleSessions, Grant
from gantry_admin.credentials import TokenFile, token_digest
from gantry_admin.errors import Problem, SettingsError
from gantry_admin.settings import Address, SidecarSettings, parse_address

REFRESH_S: Final = 2.0
"""The time between two checks whether a token file has changed."""

UNAUTHORIZED_HEADERS: Final = {"WWW-Authenticate": 'Bearer realm="gantry"'}


class Scope(Enum):
    """The permission that an endpoint requires."""

    PROBE = "probe"
    """Read probes, which need no credentials at all."""

    VIEW = "view"
    """View the state of the broker and its group, without messages."""

    READ = "read"
    """Read messages and ranges of the log."""

    CHANGE = "change"
    """Give orders to the broker, and resend dead letters."""


class Caller(NamedTuple):
    """The authenticated identity behind a request."""

    name: str | None
    """The name of the token or the certificate; None for an anonymous caller."""
    may_change: bool
    """Whether the caller may give orders."""


ANONYMOUS: Final = Caller(None, False)


@final
class Guard:
    """The checks of the table above. They may be called from any thread; one thread at a time reads the token files."""

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
        """Return the token for requests to peers: of --peer-token-file, else a read token, else one that may change."""
        return "" if self._for_peers is None else self._for_peers.first

    def order_token(self) -> str:
        """Return the token with which this sidecar proves its identity: the first one that may change."""
        return "" if self._writers is None else self._writers.first

    def caller(self, authorization: str | None, certificate_subject: str | None) -> Caller:
        """Return the caller of a request. Raises ``Problem`` 401 for an unknown token."""
        if certificate_subject is not None:
            return Caller(f"certificate:{certificate_subject}"[:200], True)
        if authorization is None:
            return ANONYMOUS
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() == "bearer":
            for file, may_change in ((self._writers, True), (self._readers, False)):
                name = None if file is None else file.name_of(token.strip())
                if name is not None:
                    return Caller(f"token:{name}", may_change)
            grant = self.sessions.grant_of(token.strip())
            if grant is not None and self._is_valid(grant):
                return Caller(f"{grant.name} (console)", grant.may_change)
        raise Problem(401, "unknown token", headers=UNAUTHORIZED_HEADERS)

    def new_console_code(self, caller: Caller, authorization: str | None) -> str:
        """Return a one-time code for the console with the permissions of ``caller``. Raises ``Problem`` 403.

        Only a token gets a code: a session cannot prolong itself, and a certificate has no session.
        """
        _, _, token = (authorization or "").partition(" ")
        if caller.name is None or not caller.name.startswith("token:") or caller.name.endswith(" (console)"):
            raise Problem(403, "only a token can request a console code")
        return self.sessions.new_code(caller.name, token_digest(token.strip()), may_change=caller.may_change)

    def _is_valid(self, grant: Grant) -> bool:
        """Return whether the token behind a session is still valid and still has the permissions of the session."""
        files = (self._writers,) if grant.may_change else (self._readers, self._writers)
        return any(file is not None and file.has_digest(grant.token_digest) for file in files)

    def check(self, scope: Scope, caller: Caller, host: str | None) -> None:
        """Check that a caller has a permission. Raises ``Problem`` 401 or 403."""
        if scope is Scope.PROBE or caller.may_change:
            return
        if scope is Scope.CHANGE:
            if caller.name is not None:
                raise Problem(403, "this token is read-only")
            if not self._has_credentials:
                raise Problem(403, "changes are disabled: neither --token-file nor --tls-client-ca is set")
            raise Problem(401, "a token is required", headers=UNAUTHORIZED_HEADERS)
        if caller.name is not None:
            return
        if not self._is_open(scope):
            raise Problem(401, "a token is required", headers=UNAUTHORIZED_HEADERS)
        if not is_own_name(host):
            raise Problem(403, "without a token the Host header must be localhost or a loopback address")

    def _is_open(self, scope: Scope) -> bool:
        if not self._is_loopback:
            return False
        return self._open_reads or (scope is Scope.VIEW and not self._has_credentials)

    def refresh(self) -> None:
        """Reload the token files that have changed. Blocks: call it in a thread."""
        for file in {self._writers, self._readers, self._for_peers} - {None}:
            if file is not None:
                file.refresh()

    async def keep_fresh(self) -> None:
        """Reload changed token files again and again, until cancelled."""
        while True:
            await asyncio.sleep(REFRESH_S)
            await asyncio.to_thread(self.refresh)


def is_own_name(host: str | None) -> bool:
    """Return whether a Host header names this machine's loopback."""
    if not host:
        return False
    try:
        address = parse_address(host if _has_port(host) else f"{host}:80", "Host")
    except SettingsError:
        return False
    return Address(host=address.host.lower(), port=address.port).is_loopback


def _has_port(host: str) -> bool:
    return host.rpartition("]")[2].count(":") == 1 if host.startswith("[") else ":" in host
