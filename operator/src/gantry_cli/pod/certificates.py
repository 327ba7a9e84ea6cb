"""The certificate that a pod issues for itself, with the authority of its group (``access.certificates``).

    authority     ca.crt and ca.key, mounted from a Secret
    certificates  tls.crt, tls.key and ca.crt, written here. Servers load them when they change

A certificate is valid for ``VALIDITY``, and issued again after a third of that, when the container starts, and when the
authority or a name changes. It is issued by a process of its own (``gantry pod certificate``), which ends at once: so
process 1 keeps neither the memory of a library for certificates, nor waits for a name to be resolved.
"""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, final

from gantry_cli.errors import CliError
from gantry_cli.pod.member import NotReadyError
from gantry_cli.processes import server_command
from gantry_remoting.durable_files import replace_file
from gantry_spec.cluster_objects import host_spellings

VALIDITY: Final = timedelta(days=30)
RENEW_S: Final = VALIDITY.total_seconds() / 3
CLOCK_ERROR_S: Final = 3600.0
"""A certificate that is from further in the future was issued before the clock was set back."""

CHECK_S: Final = 5.0
"""The time between two checks whether a new certificate is needed, and the first pause after a failure."""

PAUSE_S_MAX: Final = 300.0
"""The longest pause between two attempts; after each failure it is twice as long."""

ISSUE_S_MAX: Final = 120.0
"""How long the process may take that issues a certificate. Then it is killed."""

RESOLVER_OPTIONS: Final = "timeout:1 attempts:1"
"""How long that process waits for DNS servers: a pod must start without them, and the next certificate is complete."""

RESOLVE_AGAIN_S: Final = 60.0
"""The time after which a certificate without the addresses of a name that could not be resolved is issued again. The
pause until the next one is twice as long each time, at most ``PAUSE_S_MAX``."""

WAIT_S: Final = 10.0
"""How long a start waits for a certificate that is being issued, although the pod has one."""

AUTHORITY_FILE: Final = "ca.crt"
AUTHORITY_KEY_FILE: Final = "ca.key"
CERTIFICATE_FILE: Final = "tls.crt"
KEY_FILE: Final = "tls.key"
UNRESOLVED_FILE: Final = "unresolved"
"""The file that exists while the certificate lacks the addresses of a name."""

LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class IssueSettings:
    """The folders of a pod's certificate, and its names."""

    authority: Path
    """The folder with the authority and its key."""

    folder: Path
    """The folder in which the certificate is written."""

    hosts: tuple[str, ...] = ()
    """The host names of the pod. Their addresses become names, too."""

    names_file: Path | None = None
    """The file with further names, one a line, which may change; it may be missing."""

    @property
    def arguments(self) -> list[str]:
        """The options of ``gantry pod certificate`` for these settings."""
        words = ["--authority", str(self.authority), "--certificates", str(self.folder)]
        words += ["--certificate-names", str(self.names_file)] if self.names_file is not None else []
        return words + [word for host in self.hosts for word in ("--certificate-host", host)]

    def names(self) -> list[str]:
        """Return the names in the file; none if it is missing."""
        return [] if self.names_file is None else _bytes(self.names_file).decode().split()

    def digest(self) -> bytes:
        """Return a digest of everything that a certificate follows from, except addresses of names."""
        authority = _bytes(self.authority / AUTHORITY_FILE)
        return hashlib.sha256(authority + b"\0" + "\n".join(self.names()).encode()).digest()

    def issued_ns(self) -> int:
        """Return when the present certificate was written; 0 without one."""
        try:
            return (self.folder / CERTIFICATE_FILE).stat().st_mtime_ns
        except OSError:
            return 0


# -- issuing -----------------------------------------------------------------------------------------------------------


def issue_certificate(settings: IssueSettings, environment: Mapping[str, str], now: datetime) -> list[str]:
    """Issue the certificate of this pod. Return the hosts that could not be resolved. Raises ``CliError``."""
    try:
        from gantry_cli.pod.issuing import issue, read_issuer
    except ImportError as error:
        raise CliError("the package cryptography is not installed", "install gantry-mq[admin]") from error
    certificate_file = settings.authority / AUTHORITY_FILE
    try:
        issuer = read_issuer(certificate_file, settings.authority / AUTHORITY_KEY_FILE)
    except (OSError, ValueError) as error:
        raise CliError(f"cannot use the authority in {settings.authority}: {error}") from error
    names, unresolved = certificate_names(settings, environment)
    issued = issue(issuer, names, now, VALIDITY)
    settings.folder.mkdir(parents=True, exist_ok=True)
    authority = certificate_file.read_bytes()
    replace_file(settings.folder / AUTHORITY_FILE, authority, is_durable=False)
    replace_file(settings.folder / KEY_FILE, issued.key, mode=0o600, is_durable=False)
    replace_file(settings.folder / CERTIFICATE_FILE, issued.certificate, is_durable=False)
    if unresolved:
        replace_file(settings.folder / UNRESOLVED_FILE, b"", is_durable=False)
    else:
        (settings.folder / UNRESOLVED_FILE).unlink(missing_ok=True)
    return unresolved


def certificate_names(settings: IssueSettings, environment: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the names of this pod's certificate, and the hosts whose addresses are missing in them."""
    found, unresolved = dict.fromkeys([environment.get("POD_NAME", "") or socket.gethostname()]), []
    for host in settings.hosts:
        found |= dict.fromkeys(host_spellings(host))
        if host.startswith("*."):
            continue
        addresses = resolve(host)
        if not addresses:
            unresolved.append(host)
        found |= dict.fromkeys(addresses)
    found |= dict.fromkeys(environment.get("POD_IPS", "").replace(",", " ").split())
    found |= dict.fromkeys(settings.names())
    return [*found, *(one for one in LOOPBACK if one not in found)], unresolved


def resolve(host: str) -> list[str]:
    """Return the addresses of a host; none if it cannot be resolved now."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return sorted({str(one[4][0]) for one in found})


# -- when a certificate is issued --------------------------------------------------------------------------------------


@final
class PodCertificate:
    """Keeps the certificate of this pod. For process 1, whose loop calls ``keep``."""

    def __init__(
        self,
        settings: IssueSettings | None,
        *,
        start: Callable[[list[str]], subprocess.Popen[bytes]] | None = None,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``start`` starts the process that issues a certificate. Without settings nothing is ever done."""
        self._settings: Final = settings
        self._start: Final = _start_process if start is None else start
        self._now: Final = now
        self._wall: Final = wall
        self._process: subprocess.Popen[bytes] | None = None
        self._check_at_s = now()
        self._issued_for: bytes | None = None
        """The digest of authority and names of the present certificate; None before this process has issued one."""

        self._issuing_for: tuple[bytes, int] = (b"", 0)
        """The digest for the certificate that is being issued, and the time of the file that it replaces."""

        self._kill_at_s = 0.0
        self._pause_s = CHECK_S
        self._resolve_s = RESOLVE_AGAIN_S
        self._last_message = ""

    def __repr__(self) -> str:
        return f"<PodCertificate {'of no authority' if self._settings is None else self._settings.folder}>"

    def require(self) -> None:
        """Keep the certificate. Raises ``NotReadyError`` while the pod has none, or just gets another one.

        A server that starts refuses a key that does not match its certificate, which it could read between the two.
        """
        self.keep()
        folder = None if self._settings is None else self._settings.folder
        if folder is not None and not (folder / CERTIFICATE_FILE).exists():
            raise NotReadyError(f"no certificate yet: {folder / CERTIFICATE_FILE} is missing")
        if self._process is not None and self._now() < self._kill_at_s - ISSUE_S_MAX + WAIT_S:
            raise NotReadyError("a certificate is being issued")

    def keep(self) -> None:
        """Start a process that issues a certificate, if that is due and none runs. Never waits."""
        settings = self._settings
        if settings is None or not self._has_ended(settings) or self._now() < self._check_at_s:
            return
        self._check_at_s = self._now() + CHECK_S
        digest = settings.digest()
        if not self._is_due(settings, digest):
            return
        self._issuing_for, self._kill_at_s = (digest, settings.issued_ns()), self._now() + ISSUE_S_MAX
        try:
            self._process = self._start(["gantry_cli", "pod", "certificate", *settings.arguments])
        except OSError as error:  # the running server must not end because no process can be started
            self._record_failure(f"cannot start a process: {error.strerror or error}")

    def _has_ended(self, settings: IssueSettings) -> bool:
        """Return whether no process issues a certificate, and record what the last one has issued."""
        if self._process is None:
            return True
        if self._process.poll() is None:
            if self._now() >= self._kill_at_s:
                self._process.kill()
            return False
        self._process = None
        digest, before_ns = self._issuing_for
        if settings.issued_ns() == before_ns:
            self._record_failure("the process that issues it has failed")
            return True
        self._issued_for, self._pause_s, self._last_message = digest, CHECK_S, ""
        is_complete = not (settings.folder / UNRESOLVED_FILE).exists()
        self._resolve_s = RESOLVE_AGAIN_S if is_complete else min(2 * self._resolve_s, PAUSE_S_MAX)
        return True

    def _record_failure(self, reason: str) -> None:
        """Delay the next attempt, and print a new reason. The server keeps the certificate that it has."""
        if reason != self._last_message:
            print(f"gantry pod: no certificate issued; trying again: {reason}", file=sys.stderr, flush=True)
        self._last_message = reason
        self._check_at_s = self._now() + self._pause_s
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)

    def _is_due(self, settings: IssueSettings, digest: bytes) -> bool:
        issued_ns = settings.issued_ns()
        age_s = self._wall() - issued_ns / 1e9
        if not issued_ns or digest != self._issued_for:
            return True
        if (settings.folder / UNRESOLVED_FILE).exists() and age_s >= self._resolve_s:
            return True
        return not -CLOCK_ERROR_S <= age_s < RENEW_S


def _start_process(words: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        server_command(*words),
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno(),
        env={**os.environ, "RES_OPTIONS": RESOLVER_OPTIONS},
    )


def _bytes(path: Path) -> bytes:
    """Return the content of a mounted file; empty if it is missing."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
