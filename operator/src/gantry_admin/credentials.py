"""Tokens from files, and who showed one.

A file has one token per line, ``name:token`` or a bare token; ``#`` begins a comment. It is read again when it has
changed, so that a token is replaced without a restart: first with both in it, then without the old one. A file that
cannot be read any more keeps what was in it, and is complained about. Compared in constant time; never in a log, a
repr or an answer.
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
    name: str
    digest: bytes


def token_digest(token: str) -> bytes:
    """What is kept of a token."""
    return hashlib.sha256(token.encode()).digest()


def read_tokens(text: str, path: Path) -> tuple[BearerToken, ...]:
    """Return the tokens of a file. Raises ``SettingsError`` that names the line, never what is in it."""
    try:
        return parse_tokens(text)
    except ValueError as error:
        raise SettingsError(f"{path}, {error}") from error


@final
class TokenFile:
    """The tokens of one file. Read in a thread, asked from any."""

    def __init__(self, path: Path) -> None:
        """Raises ``SettingsError``."""
        self.path: Final = path
        self._stamp: tuple[int, int, int] | None = None
        self._tokens: tuple[_Token, ...] = ()
        self._first = ""
        try:
            self._load()
        except OSError as error:
            raise SettingsError(f"{path} cannot be read: {error.strerror}") from error

    def __repr__(self) -> str:
        return f"<TokenFile {self.path} tokens={len(self._tokens)}>"

    @property
    def first(self) -> str:
        """The first token, to be shown to somebody else."""
        return self._first

    def refresh(self) -> None:
        """Read it again if it has changed."""
        try:
            self._load()
        except (OSError, SettingsError, UnicodeDecodeError) as error:
            log.warning("a token file cannot be read again; the old tokens stay", extra={"reason": _reason(error)})

    def name_of(self, token: str) -> str | None:
        """Whose token it is. Looks at every one, so that time tells nothing."""
        digest, name = token_digest(token), None
        for one in self._tokens:
            if hmac.compare_digest(one.digest, digest):
                name = one.name
        return name

    def knows(self, digest: bytes) -> bool:
        """Whether the token with this digest is still in the file."""
        return any(hmac.compare_digest(one.digest, digest) for one in self._tokens)

    def _load(self) -> None:
        facts = self.path.stat()
        stamp = (facts.st_mtime_ns, facts.st_ino, facts.st_size)
        if stamp == self._stamp:
            return
        if facts.st_size > FILE_BYTES_MAX:
            raise SettingsError(f"{self.path} has {facts.st_size} bytes; that is no file of tokens")
        pairs = read_tokens(self.path.read_text(encoding="utf-8"), self.path)
        self._tokens = tuple(_Token(name, token_digest(token)) for name, token in pairs)
        self._first = pairs[0][1]
        self._stamp = stamp


def _reason(error: Exception) -> str:
    """Without what a decoder quotes of the file."""
    return type(error).__name__ if isinstance(error, UnicodeDecodeError) else str(error)
