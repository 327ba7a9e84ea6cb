"""Creation of the TLS contexts of all ports and clients, so that no port is weaker than another.

Only clients that identify a sidecar by other means than its certificate chain create their own.

TLS 1.2 is the oldest version, restricted to suites with forward secrecy and authenticated encryption, which Java 8 and
everything since supports. There is no compression (it leaks lengths), no renegotiation (it costs a server more than its
client), and no key with a password: a server that starts unattended cannot ask for one.
"""

import ssl
from dataclasses import dataclass
from typing import Final

CIPHERS: Final = "@SECLEVEL=2:ECDHE+AESGCM:ECDHE+CHACHA20"
"""The suites of TLS 1.2. Those of 1.3 are all good, and cannot be chosen here."""


@dataclass(frozen=True, slots=True)
class PeerContexts:
    """The contexts of peers that both listen and connect to each other, from one certificate."""

    server: ssl.SSLContext
    """For connections that others open."""

    client: ssl.SSLContext
    """For connections to the other members."""


def server_context(
    certificate: str, key: str, authority: str | None = None, *, requires_client_certificate: bool = False
) -> ssl.SSLContext:
    """Return the context of a listener. Raises OSError naming the files.

    With an authority clients may, or must, present a certificate that it has signed.
    """
    context = _context(ssl.PROTOCOL_TLS_SERVER)
    _load_chain(context, certificate, key)
    if authority:
        _load_authority(context, authority)
        context.verify_mode = ssl.CERT_REQUIRED if requires_client_certificate else ssl.CERT_OPTIONAL
    return context


def client_context(
    authority: str | None = None,
    certificate: str | None = None,
    key: str | None = None,
    *,
    is_server_verified: bool = True,
    is_host_name_checked: bool = True,
) -> ssl.SSLContext:
    """Return the context of a client. Without an authority the system's are used. Raises OSError naming the files."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = is_server_verified and is_host_name_checked
    context.verify_mode = ssl.CERT_REQUIRED if is_server_verified else ssl.CERT_NONE
    if certificate and key:
        _load_chain(context, certificate, key)
    if authority:
        _load_authority(context, authority)
    elif is_server_verified:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    return context


def peer_contexts(certificate: str, key: str, authority: str | None = None) -> PeerContexts:
    """Return the contexts of peers: with an authority both sides must present a certificate that it has signed.

    Without an authority neither side is verified. Host names are not checked: members are identified by their
    authority, and their addresses change.
    """
    return PeerContexts(
        server_context(certificate, key, authority, requires_client_certificate=True),
        client_context(
            authority, certificate, key, is_server_verified=bool(authority), is_host_name_checked=False
        ),
    )  # fmt: skip


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_ciphers(CIPHERS)
    return context


def _load_chain(context: ssl.SSLContext, certificate: str, key: str) -> None:
    try:
        context.load_cert_chain(certificate, key, password=_refuse_password)
    except OSError as error:
        reason = getattr(error, "reason", None)
        text = "the key does not belong to the certificate" if reason == "KEY_VALUES_MISMATCH" else error
        raise OSError(f"cannot use certificate {certificate} with key {key}: {text}") from error


def _load_authority(context: ssl.SSLContext, authority: str) -> None:
    try:
        context.load_verify_locations(authority)
    except OSError as error:
        raise OSError(f"cannot use authority {authority}: {error}") from error


def _refuse_password() -> str:
    raise OSError("the key is encrypted; provide it without a password")
