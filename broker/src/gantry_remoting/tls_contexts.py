"""How every TLS context of ours is made, so that no port is weaker than another.

TLS 1.2 is the oldest version, and of its suites only those with forward secrecy and authenticated encryption are
spoken, which Java 8 and everything since knows. No compression (it leaks lengths), no renegotiation (it costs a server
more than whoever asks), and no key that needs a password: a server that starts at night has nobody to ask.
"""

import ssl
from dataclasses import dataclass
from typing import Final

CIPHERS: Final = "@SECLEVEL=2:ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2; those of 1.3 are all good, and cannot be chosen here."""


@dataclass(frozen=True, slots=True)
class PeerContexts:
    """Both directions of those who listen to and connect to each other, from one certificate."""

    server: ssl.SSLContext
    client: ssl.SSLContext


def server_context(
    certificate: str, key: str, authority: str | None = None, *, requires_client_certificate: bool = False
) -> ssl.SSLContext:
    """A listener's. With an authority clients may show a certificate of it, or must. Raises OSError naming files."""
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
    """A client's. Without an authority the system's are asked. Raises OSError naming the files."""
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
    """Of equals: with an authority both sides must show what it has signed, without one nobody proves anything.

    Names are not checked: members are known by who signed them, their addresses come and go.
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
        text = "the key is not that of the certificate" if reason == "KEY_VALUES_MISMATCH" else error
        raise OSError(f"cannot use certificate {certificate} with key {key}: {text}") from error


def _load_authority(context: ssl.SSLContext, authority: str) -> None:
    try:
        context.load_verify_locations(authority)
    except OSError as error:
        raise OSError(f"cannot use authority {authority}: {error}") from error


def _refuse_password() -> str:
    raise OSError("the key is locked with a password; write it without one")
