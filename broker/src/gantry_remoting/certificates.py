"""Certificates that are replaced while we run: what is in use now, and looking whether the files say something else.

    files change -> a new context is made of them -> it fits: it is used for every connection from now on
                                                  `- it does not: the old one goes on, and the log says why

Whoever makes a connection asks `current` each time; connections that exist keep what they began with. What counts is
the content of the files, so it does not matter whether they were written in place, renamed, or are a mounted Secret
whose `..data` link was turned: all of these are seen, and touching a file is no change.

Files that are written one after the other do not fit together for a moment. So a change that cannot be used is said
only when it is still there at the next look, and one during which the files moved on is not used at all. What has
expired already does not replace what has not.

It is made of a function that builds whatever the owner needs of the files, one context or a pair of them, so that both
directions of a pair change in the same moment. It refuses to know what a certificate is good for.
"""

import asyncio
import hashlib
import logging
import math
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, Generic, TypeVar, final

from gantry_remoting.file_watch import FileWatch
from gantry_remoting.small_file import read_small_file
from gantry_remoting.validity import NoCertificate, Validity, chain_validity

log = logging.getLogger(__name__)

T_co = TypeVar("T_co", covariant=True)

DAY_S: Final = 86_400.0
WARNING_S: Final = 14 * DAY_S
"""How long before its end a certificate is spoken of, once a day."""


@final
class CertificateSource(Generic[T_co]):
    """One set of files and what was made of them. Loaded by worker threads, under a lock; read by anybody."""

    def __init__(
        self,
        purpose: str,
        paths: Sequence[str],
        build: Callable[[], T_co],
        *,
        certificate: str | None,
        names: Mapping[str, str] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`purpose` is what logs call it, `build` raises OSError, `certificate` is the file that can expire.

        `names` are the settings in which paths were written, for whoever has to mend one: {setting: path}.
        """
        self.purpose: Final = purpose
        self.certificate: Final = certificate
        self.expires_at: float | None = None
        """When the chain in use ends, in seconds since 1970; None when there is none, or nothing was loaded yet."""

        self.trouble: str | None = None
        """Why what is in the files now is not in use."""

        self._paths: Final = tuple(paths)
        self._names: Final = dict(names or {})
        self._build: Final = build
        self._now: Final = now
        self._lock: Final = threading.Lock()
        self._current: T_co | None = None
        self._loaded = b""
        self._doubted = b""
        self._warned_at = -math.inf
        self._watch: Final = FileWatch(f"certificates for {purpose}", lambda: asyncio.to_thread(self.look))

    def __repr__(self) -> str:
        ends = "never" if self.expires_at is None else _date(self.expires_at)
        return f"<CertificateSource {self.purpose} ends={ends} trouble={self.trouble}>"

    @property
    def current(self) -> T_co:
        """What new connections use."""
        assert self._current is not None, "asked for a certificate before it was loaded"
        return self._current

    # ------- life

    async def start(self) -> None:
        """Load, and look again every few seconds until closed. Raises OSError naming the file."""
        await asyncio.to_thread(self.load)
        self._watch.start()

    async def close(self) -> None:
        """Look no more. What is in use stays in use."""
        await self._watch.close()

    async def fresh(self) -> T_co:
        """What the files say now, for those who connect rarely and do not watch. Raises OSError for the first time."""
        if self._current is None:
            await asyncio.to_thread(self.load)
        else:
            await asyncio.to_thread(self.look)
        return self.current

    # ------- blocking

    def load(self) -> None:
        """Use what is in the files, even if it has expired: a broker must start. Raises OSError naming the file."""
        with self._lock:
            seen = self._digest()
            self._use(seen, self._made())

    def look(self) -> bool:
        """Use what is in the files if it is new and good. Whether it was; a refusal is in the log, and in `trouble`."""
        with self._lock:
            self._warn()
            seen = self._digest()
            if seen == self._loaded:
                self.trouble, self._doubted = None, b""
                return False
            try:
                made = self._made()
                self._check(made[1])
            except OSError as error:
                self._refuse(seen, str(error))
                return False
            if self._digest() != seen:
                return False  # somebody is writing them just now
            self._use(seen, made)
            log.info("a certificate was replaced", extra=self._facts())
            return True

    def _made(self) -> tuple[T_co, Validity | None]:
        """A new one, whole, beside the one that is in use. Raises OSError that names settings and files."""
        try:
            for path in self._paths:
                _readable(path)
            made = self._build()
            if self.certificate is None:
                return made, None
            return made, chain_validity(read_small_file(self.certificate))
        except NoCertificate as error:
            raise OSError(self._named(f"cannot use certificate {self.certificate}: {error}")) from error
        except OSError as error:
            raise OSError(self._named(str(error))) from error

    def _named(self, text: str) -> str:
        """`text` with each path behind the settings in which it stands."""
        settings: dict[str, list[str]] = {}
        for name, path in self._names.items():
            settings.setdefault(path, []).append(name)
        if not settings:
            return text
        longest_first = "|".join(re.escape(path) for path in sorted(settings, key=len, reverse=True))
        pattern = rf"(?<!\S)(?:{longest_first})(?=[\s:]|$)"
        return re.sub(pattern, lambda found: f"{' and '.join(settings[found[0]])}={found[0]}", text)

    def _check(self, validity: Validity | None) -> None:
        now = self._now()
        if self.expires_at is not None and now >= self.expires_at:
            return  # there is nothing good to keep, and somebody may have taken an authority out of its file
        if validity is not None and not validity.begins_at <= now < validity.ends_at:
            is_over = now >= validity.ends_at
            when = f"it ended {_date(validity.ends_at)}" if is_over else f"it begins {_date(validity.begins_at)}"
            raise OSError(self._named(f"cannot use certificate {self.certificate}: {when}"))

    def _use(self, seen: bytes, made: tuple[T_co, Validity | None]) -> None:
        self._current, validity = made
        self._loaded = seen
        self.expires_at = None if validity is None else validity.ends_at
        self.trouble, self._doubted, self._warned_at = None, b"", -math.inf
        self._warn()

    def _refuse(self, seen: bytes, reason: str) -> None:
        if self._doubted == seen and self.trouble != reason:
            log.error("certificate not replaced; the old one stays", extra={**self._facts(), "reason": reason})
            self.trouble = reason  # after the line: a reader of `trouble` finds it in the log
        self._doubted = seen

    def _warn(self) -> None:
        now, ends_at = self._now(), self.expires_at
        if ends_at is None or ends_at - now > WARNING_S or now - self._warned_at < DAY_S:
            return
        self._warned_at = now
        if now >= ends_at:
            log.error("a certificate has expired", extra=self._facts())
        else:
            days = {"days_left": int((ends_at - now) // DAY_S)}
            log.warning("a certificate expires soon", extra=self._facts() | days)

    def _facts(self) -> dict[str, object]:
        ends = None if self.expires_at is None else _date(self.expires_at)
        return {"purpose": self.purpose, "certificate": self.certificate, "ends": ends}

    def _digest(self) -> bytes:
        """Of everything in the files; the key itself is not kept."""
        digest = hashlib.sha256()
        for path in self._paths:
            try:
                data = read_small_file(path)
            except OSError as error:
                data = f"unreadable: {error.errno}".encode()
            digest.update(len(data).to_bytes(8, "big") + data)
        return digest.digest()


def _readable(path: str) -> None:
    """Raises OSError for what OpenSSL would read for ever, or refuse without a name."""
    try:
        read_small_file(path)
    except OSError as error:
        raise OSError(f"cannot read {path}: {error.strerror}") from error


def _date(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
