"""TLS of both listeners, and whose certificate a client has shown.

With an authority for clients a certificate is asked for and not insisted on: whoever shows one must have it from that
authority, or is not connected at all; whoever shows none is nobody, who may ask the probes and nothing else. kubelet
shows none.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from gantry_admin.errors import SettingsError
from gantry_admin.settings import AccessSettings


def server_context(access: AccessSettings) -> ssl.SSLContext | None:
    """None without a certificate. Raises ``SettingsError`` for files that cannot be used."""
    if access.tls_cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(access.tls_cert, access.tls_key)
        if access.tls_client_ca is not None:
            context.load_verify_locations(access.tls_client_ca)
            context.verify_mode = ssl.CERT_OPTIONAL
    except OSError as error:
        raise SettingsError(f"the certificate cannot be used: {error.strerror or error}") from error
    return context


def subject_of(certificate: Mapping[str, Any] | None) -> str | None:
    """The common name of a verified certificate; None when none was shown."""
    if not certificate:
        return None
    pairs = {name: value for rdn in certificate.get("subject", ()) for name, value in rdn}
    return str(pairs.get("commonName", "without a name"))


def recording_protocol(subjects: dict[tuple[str, int], str]) -> type[H11Protocol]:
    """The server's protocol, that puts down whose certificate each connection has shown, for as long as it is open."""

    class Recording(H11Protocol):
        _peer: tuple[str, int] | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            subject = subject_of(transport.get_extra_info("peercert"))
            if subject is not None and self.client is not None:
                self._peer = (self.client[0], self.client[1])
                subjects[self._peer] = subject

        def connection_lost(self, exc: Exception | None) -> None:
            if self._peer is not None:
                subjects.pop(self._peer, None)
            super().connection_lost(exc)

    return Recording
