"""Certificates that are replaced while the process runs: the context in use, and the check for changed files.

    files change -> a new context is made of them -> valid:   it is used for every connection from now on
                                                  `- invalid: the old one stays in use, and the log gives the reason

Each new connection takes `current`; existing connections keep their context. Changes are detected by the content of the
files, so it does not matter whether they were written in place, renamed, or are a mounted Secret whose `..data` link
was switched. Touching a file is no change.

Files that are written one after the other do not match for a moment. So a change that cannot be used is logged only if
the next check finds the same files, and files that change while they are loaded are loaded again at the next check. An
expired certificate does not replace a valid one.

`build` makes the object that the owner needs of the files, one context or a pair of them, so that both directions of a
pair change at the same moment. This module does not know the purpose of a certificate.
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
"""How long before its expiry a certificate is reported in the log, once a day."""


@final
class CertificateSource(Generic[T_co]):
    """One set of files and the context made of them. Any thread may load it, under a lock, or read the context."""

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
        """Create a source without loading the files.

        `purpose` is its name in logs, `build` makes the context and raises OSError, `certificate` is the file that can
        expire. `names` maps settings to the paths in them, so that an error can name the setting: {setting: path}.
        """
        self.purpose: Final = purpose
        self.certificate: Final = certificate
        self.expires_at: float | None = None
        """When the chain in use expires, in seconds since 1970; None if it cannot expire, or before the first load."""

        self.reload_error: str | None = None
        """Why the present content of the files is not in use."""

        self._paths: Final = tuple(paths)
        self._names: Final = dict(names or {})
        self._build: Final = build
        self._now: Final = now
        self._lock: Final = threading.Lock()
        self._current: T_co | None = None
        self._loaded_digest = b""
        self._rejected_digest = b""
        self._warned_at = -math.inf
        self._watch: Final = FileWatch(f"certificates for {purpose}", lambda: asyncio.to_thread(self.reload_if_changed))

    def __repr__(self) -> str:
        ends = "never" if self.expires_at is None else _date(self.expires_at)
        return f"<CertificateSource {self.purpose} ends={ends} reload_error={self.reload_error}>"

    @property
    def current(self) -> T_co:
        """Return the context for new connections."""
        assert self._current is not None, "a certificate is used before it was loaded"
        return self._current

    # ------- start and close

    async def start(self) -> None:
        """Load the files, and check them every few seconds until closed. Raises OSError naming the file."""
        await asyncio.to_thread(self.load)
        self._watch.start()

    async def close(self) -> None:
        """Stop checking the files. The context in use stays in use."""
        await self._watch.close()

    async def load_current(self) -> T_co:
        """Check the files and return the context, for owners that connect rarely and do not watch.

        The first load raises OSError.
        """
        if self._current is None:
            await asyncio.to_thread(self.load)
        else:
            await asyncio.to_thread(self.reload_if_changed)
        return self.current

    # ------- blocking

    def load(self) -> None:
        """Load the files even if the certificate has expired: a broker must start. Raises OSError naming the file."""
        with self._lock:
            files_digest = self._digest()
            self._adopt(files_digest, self._build_checked())

    def reload_if_changed(self) -> bool:
        """Load the files if they are new and good, and return whether they were.

        The reason of a refusal is logged, and in `reload_error`, when a second check finds the same files.
        """
        with self._lock:
            self._warn_before_expiry()
            files_digest = self._digest()
            if files_digest == self._loaded_digest:
                self.reload_error, self._rejected_digest = None, b""
                return False
            try:
                made = self._build_checked()
                self._check(made[1])
            except OSError as error:
                self._refuse(files_digest, str(error))
                return False
            if self._digest() != files_digest:
                return False  # the files are being written now
            self._adopt(files_digest, made)
            log.info("certificate replaced", extra=self._log_fields())
            return True

    def _build_checked(self) -> tuple[T_co, Validity | None]:
        """Return a new context and its validity. Raises OSError that names settings and files."""
        try:
            for path in self._paths:
                _check_readable(path)
            made = self._build()
            if self.certificate is None:
                return made, None
            return made, chain_validity(read_small_file(self.certificate))
        except NoCertificate as error:
            raise OSError(self._with_setting_names(f"cannot use certificate {self.certificate}: {error}")) from error
        except OSError as error:
            raise OSError(self._with_setting_names(str(error))) from error

    def _with_setting_names(self, text: str) -> str:
        """Return `text` with each path preceded by the settings that contain it."""
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
            # The certificate in use has expired, too. The new files are used, since they may withdraw an authority.
            return
        if validity is not None and not validity.begins_at <= now < validity.ends_at:
            is_over = now >= validity.ends_at
            when = f"it ended {_date(validity.ends_at)}" if is_over else f"it begins {_date(validity.begins_at)}"
            raise OSError(self._with_setting_names(f"cannot use certificate {self.certificate}: {when}"))

    def _adopt(self, files_digest: bytes, made: tuple[T_co, Validity | None]) -> None:
        self._current, validity = made
        self._loaded_digest = files_digest
        self.expires_at = None if validity is None else validity.ends_at
        self.reload_error, self._rejected_digest, self._warned_at = None, b"", -math.inf
        self._warn_before_expiry()

    def _refuse(self, files_digest: bytes, reason: str) -> None:
        if self._rejected_digest == files_digest and self.reload_error != reason:
            log.error("certificate not replaced; the old one stays", extra={**self._log_fields(), "reason": reason})
            self.reload_error = reason  # set after logging: a reader of `reload_error` finds the line in the log
        self._rejected_digest = files_digest

    def _warn_before_expiry(self) -> None:
        now, ends_at = self._now(), self.expires_at
        if ends_at is None or ends_at - now > WARNING_S or now - self._warned_at < DAY_S:
            return
        self._warned_at = now
        if now >= ends_at:
            log.error("certificate expired", extra=self._log_fields())
        else:
            days = {"days_left": int((ends_at - now) // DAY_S)}
            log.warning("certificate expires soon", extra=self._log_fields() | days)

    def _log_fields(self) -> dict[str, object]:
        ends = None if self.expires_at is None else _date(self.expires_at)
        return {"purpose": self.purpose, "certificate": self.certificate, "ends": ends}

    def _digest(self) -> bytes:
        """Return a hash of the content of all files; the key itself is not kept."""
        digest = hashlib.sha256()
        for path in self._paths:
            try:
                data = read_small_file(path)
            except OSError as error:
                data = f"unreadable: {error.errno}".encode()
            digest.update(len(data).to_bytes(8, "big") + data)
        return digest.digest()


def _check_readable(path: str) -> None:
    """Raise OSError for files on which OpenSSL would block, or fail without naming the file."""
    try:
        read_small_file(path)
    except OSError as error:
        raise OSError(f"cannot read {path}: {error.strerror}") from error


def _date(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
