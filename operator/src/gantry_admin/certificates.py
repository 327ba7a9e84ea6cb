"""TLS of both listeners, and whose certificate a client has shown.

With an authority for clients a certificate is asked for and not insisted on: whoever shows one must have it from that
authority, or is not connected at all; whoever shows none is nobody, who may ask the probes and nothing else. kubelet
shows none.

The files may be replaced at any time (`gantry_remoting.certificates`). Both servers are given one context for as long
as they run, so that one is a door: each connection that begins gets its session from the newest context behind it.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, final

from gantry_admin.errors import SettingsError
from gantry_admin.settings import AccessSettings
from gantry_remoting.certificates import CertificateSource
from gantry_remoting.tls_contexts import server_context
from gantry_spec.sidecar_proof import fingerprint_of


class Shown(NamedTuple):
    """What is shown to whoever comes now."""

    context: ssl.SSLContext
    fingerprint: bytes
    """SHA-256 of its certificate."""


@final
class Door(ssl.SSLContext):
    """Stands for the newest context. It has no certificate of its own, so a session that it made itself would fail."""

    def __new__(cls, source: CertificateSource[Shown]) -> Self:
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(self, source: CertificateSource[Shown]) -> None:
        """A door to whatever the source has when somebody comes."""
        self._source: Final = source

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        return self._source.current.context.wrap_bio(*arguments, **options)


def listener_certificates(access: AccessSettings) -> CertificateSource[Shown] | None:
    """The files of both listeners, to be started; None without a certificate."""
    if access.tls_cert is None or access.tls_key is None:
        return None
    files = {"--tls-cert": access.tls_cert, "--tls-key": access.tls_key, "--tls-client-ca": access.tls_client_ca}
    names: Final = {option: str(path) for option, path in files.items() if path is not None}
    authority = names.get("--tls-client-ca")
    certificate, key = names["--tls-cert"], names["--tls-key"]
    return CertificateSource(
        "sidecar", list(names.values()), lambda: _shown(certificate, key, authority), certificate=certificate,
        names=names,
    )  # fmt: skip


def _shown(certificate: str, key: str, authority: str | None) -> Shown:
    """Raises OSError naming files."""
    context = server_context(certificate, key, authority)
    try:
        return Shown(context, fingerprint_of(Path(certificate).read_text(encoding="utf-8", errors="replace")))
    except ValueError as error:
        raise OSError(f"--tls-cert {certificate}: {error}") from error


async def open_door(source: CertificateSource[Shown] | None) -> Door | None:
    """Load, and watch from now on. Raises ``SettingsError`` for files that cannot be used."""
    if source is None:
        return None
    try:
        await source.start()
    except OSError as error:
        raise SettingsError(str(error)) from error
    return Door(source)


def subject_of(certificate: Mapping[str, Any] | None) -> str | None:
    """The common name of a verified certificate; None when none was shown."""
    if not certificate:
        return None
    pairs = {name: value for rdn in certificate.get("subject", ()) for name, value in rdn}
    return str(pairs.get("commonName", "without a name"))
