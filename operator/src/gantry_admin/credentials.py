"""Token files, and the lookup of a token's name.

A file has one token per line, ``name:token`` or a bare token; a line that begins with ``#`` is a comment. The file is
reloaded when it has changed, so a token is replaced without a restart: first add the new token, then remove the old
one. While a file cannot be read or is invalid, its previous tokens stay valid, and a warning is logged once for each
reason. Tokens are compared in constant time, and are never in a log, a repr or an answer.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from pathlib import Path
from typing import Final, NamedTuple, final

from gantry_access.tokens import BearerToken, parse_tokens
from gantry_admin.errors import SettingsError

log = logging.getLogger(__name__)

FILE_BYTES_MAX: Final = 64 * 1024


class _Token(NamedTuple):
    """A token, by its digest, and its name."""

    name: str
    digest: bytes


def token_digest(token: str) -> bytes:
    """Return the digest that is kept instead of a token."""
    return hashlib.sha256(token.encode()).digest()


def parse_token_file(text: str, path: Path) -> tuple[BearerToken, ...]:
    """Return the tokens of a file. Raises ``SettingsError`` that names the line, never its content."""
    try:
        return parse_tokens(text)
    except ValueError as error:
        raise SettingsError(f"{path}: {error}") from error


@final
class TokenFile:
    """The tokens of one file. It may be used from any thread, and is reloaded by one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Load the file. Raises ``SettingsError`` if it cannot be used."""
        self.path: Final = path
        self._stamp: tuple[int, int, int] | None = None
        self._tokens: tuple[_Token, ...] = ()
        self._first = ""
        self._fault = ""
        """Why the last reload failed, as it was logged; empty after a success."""
        self._load()

    def __repr__(self) -> str:
        return f"<TokenFile {self.path} tokens={len(self._tokens)}>"

    @property
    def first(self) -> str:
        """The first token, which is sent to other servers."""
        return self._first

    def refresh(self) -> None:
        """Reload the file if it has changed; blocks."""
        fault = ""
        try:
            self._load()
        except SettingsError as error:
            fault = str(error)
        if fault and fault != self._fault:
            log.warning(
                "failed to reload token file; keeping the previous tokens",
                extra={"path": str(self.path), "reason": fault},
            )
        self._fault = fault

    def name_of(self, token: str) -> str | None:
        """Return the name of a token, or None. It compares with every token, so the time it takes reveals nothing."""
        digest, name = token_digest(token), None
        for one in self._tokens:
            if hmac.compare_digest(one.digest, digest):
                name = one.name
        return name

    def has_digest(self, digest: bytes) -> bool:
        """Return whether the token with this digest is still in the file."""
        return any(hmac.compare_digest(one.digest, digest) for one in self._tokens)

    def _load(self) -> None:
        """Load the file if it has changed. Raises ``SettingsError`` if it cannot be used."""
        try:
            self._load_changed()
        except UnicodeDecodeError:
            # The decoding error quotes the content, so it must not be the cause that a traceback shows.
            raise SettingsError(
                f"{self.path} is not UTF-8 text: write one token of ASCII characters per line"
            ) from None
        except OSError as error:
            raise SettingsError(f"{self.path} cannot be read: {error.strerror}") from error

    def _load_changed(self) -> None:
        facts = self.path.stat()
        stamp = (facts.st_mtime_ns, facts.st_ino, facts.st_size)
        if stamp == self._stamp:
            return
        if facts.st_size > FILE_BYTES_MAX:
            raise SettingsError(f"{self.path} has {facts.st_size} bytes, which is too long for a token file")
        pairs = parse_token_file(self.path.read_text(encoding="utf-8"), self.path)
        self._tokens = tuple(_Token(name, token_digest(token)) for name, token in pairs)
        self._first = pairs[0][1]
        self._stamp = stamp
