"""The settings file of a gRPC proxy, made from the group's spec: pure, and the same for processes and for pods.

    the spec        what all proxies of the group share: limits, TLS, accounts
    the placement   what one environment sets: addresses, name servers, and the folders of Secrets

A Secret is a folder with a file for each of its keys, in a pod as on one machine. The result is checked by the proxy
itself (`gantry_proxy.settings`), which refuses unknown keys and contradictions.
"""

from __future__ import annotations

from typing import Any, Final, final

import msgspec

from gantry_spec.manifest.group import Spec
from gantry_spec.manifest.proxy import ProxyLimits

REQUEST_HEAD_BYTES: Final = 1 << 20
"""How much larger than the largest message a request may be: its properties, and the parts of a batch."""


@final
class ProxyPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a proxy that are not in the spec."""

    name_servers: tuple[str, ...]
    """The addresses (``host:port``) of the name servers."""

    address: str
    """The address on which the proxy listens for clients."""

    http_address: str
    """The address of its probes and metrics."""

    drain_delay_ms: int
    """How long it serves as before after SIGTERM."""

    grace_ms: int
    """How long running calls may take after that."""

    accounts: str
    """The folder of the Secret `access.aclSecret`; used only if the spec names it, like the following ones."""

    account: str
    """The folder of the Secret `proxy.credentialsSecret`."""

    authority: str
    """The folder of the Secret `access.tlsSecret`."""

    certificates: str
    """The folder of the Secret with the certificate for clients."""


def proxy_settings(spec: Spec, placement: ProxyPlacement) -> dict[str, Any]:
    """Return the content of a proxy's settings file."""
    return {
        "nameServers": list(placement.name_servers),
        "listen": {
            "address": placement.address,
            "httpAddress": placement.http_address,
            "drainDelayMs": placement.drain_delay_ms,
            "graceMs": placement.grace_ms,
        },
        "tls": _tls_settings(spec, placement),
        "access": _access_settings(spec, placement),
        "limits": _limit_settings(spec.proxy.limits),
    }


def _tls_settings(spec: Spec, placement: ProxyPlacement) -> dict[str, Any]:
    """Return the certificates for clients, and the authority of brokers, whose certificate is not for single hosts."""
    found: dict[str, Any] = {}
    if spec.has_proxy_tls:
        folder = placement.certificates
        found |= {"certificate": f"{folder}/tls.crt", "key": f"{folder}/tls.key"}
        if spec.proxy.tls.requires_client_certificate:
            found["clientAuthority"] = f"{folder}/ca.crt"
    if spec.access.has_tls:
        found |= {"brokerAuthority": f"{placement.authority}/ca.crt", "checksBrokerHostName": False}
    return found


def _access_settings(spec: Spec, placement: ProxyPlacement) -> dict[str, str]:
    """Return the files with the accounts of clients and the proxy's own account; none without access control."""
    if not spec.access.acl_secret:
        return {}
    own = placement.account if spec.proxy.credentials_secret else placement.accounts
    found = {"accountsFile": f"{placement.accounts}/plain_acl.yml", "credentialsFile": f"{own}/credentials"}
    if spec.broker.get("aclMode", "").upper() == "STRICT":
        found["signature"] = "strict"
    return found


def _limit_settings(limits: ProxyLimits) -> dict[str, int]:
    """Return the limits by the names of the proxy's settings."""
    message_bytes = int(limits.message_size)
    return {
        "clientsMax": limits.clients,
        "callsMax": limits.calls,
        "connectionsMax": limits.connections,
        "callsPerClientMax": limits.calls_per_client,
        "inFlightMessagesPerClientMax": limits.in_flight_messages_per_client,
        "messageBytesMax": message_bytes,
        "requestBytesMax": message_bytes + REQUEST_HEAD_BYTES,
        "pollMsMax": int(limits.long_poll),
        "invisibleMsMax": int(limits.invisible_time),
    }
