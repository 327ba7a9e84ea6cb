"""TLS of both listeners, and the subjects of client certificates.

With a client authority, a client certificate is requested but not required. A certificate of another authority is
refused in the handshake. A client without a certificate has the permissions of its token, and without a token those of
an anonymous caller (`guard`), such as the probes: kubelet has neither.

The files may be replaced at any time (`gantry_remoting.certificates`). Both servers keep one context for as long as
they run, so that context only delegates: each new connection gets its session from the most recently loaded context.
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


class ServedCertificate(NamedTuple):
    """The certificate that new connections are served with."""

    context: ssl.SSLContext
    """The TLS context with this certificate, for new connections."""

    fingerprint: bytes
    """The SHA-256 fingerprint of the certificate."""


@final
class ReloadingContext(ssl.SSLContext):
    """A context that delegates to the newest one. It has no certificate itself, so its own sessions would fail."""

    def __new__(cls, source: CertificateSource[ServedCertificate]) -> Self:
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(self, source: CertificateSource[ServedCertificate]) -> None:
        """Create a context that uses the newest certificate of ``source`` for each connection."""
        self._source: Final = source

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        return self._source.current.context.wrap_bio(*arguments, **options)


def listener_certificates(access: AccessSettings) -> CertificateSource[ServedCertificate] | None:
    """Return the certificate source of both listeners, not started yet; None without TLS."""
    if access.tls_cert is None or access.tls_key is None:
        return None
    files = {"--tls-cert": access.tls_cert, "--tls-key": access.tls_key, "--tls-client-ca": access.tls_client_ca}
    names: Final = {option: str(path) for option, path in files.items() if path is not None}
    authority = names.get("--tls-client-ca")
    certificate, key = names["--tls-cert"], names["--tls-key"]
    return CertificateSource(
        "sidecar", list(names.values()), lambda: _load_certificate(certificate, key, authority),
        certificate=certificate, names=names,
    )  # fmt: skip


def _load_certificate(certificate: str, key: str, authority: str | None) -> ServedCertificate:
    """Load the certificate files. Raises OSError that names the file."""
    context = server_context(certificate, key, authority)
    try:
        return ServedCertificate(
            context, fingerprint_of(Path(certificate).read_text(encoding="utf-8", errors="replace"))
        )
    except ValueError as error:
        raise OSError(f"--tls-cert {certificate}: {error}") from error


async def start_context(source: CertificateSource[ServedCertificate] | None) -> ReloadingContext | None:
    """Load the certificates, and reload them when the files change. Raises ``SettingsError`` for unusable files."""
    if source is None:
        return None
    try:
        await source.start()
    except OSError as error:
        raise SettingsError(str(error)) from error
    return ReloadingContext(source)


def subject_of(certificate: Mapping[str, Any] | None) -> str | None:
    """Return the common name of a verified client certificate; None without a certificate."""
    if not certificate:
        return None
    pairs = {name: value for rdn in certificate.get("subject", ()) for name, value in rdn}
    return str(pairs.get("commonName", "without a name"))
