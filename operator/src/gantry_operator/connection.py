"""The same way to the API server for Kopf's watches as for our own calls: one kubeconfig, or one ServiceAccount."""

from __future__ import annotations

import kopf
from kubernetes.client import Configuration


def connection_of(settings: Configuration) -> kopf.ConnectionInfo:
    """For Kopf. Asked anew when the API server knows it no more, so a token that was replaced is read again."""
    header: str = settings.get_api_key_with_prefix("BearerToken") or settings.get_api_key_with_prefix("authorization")
    scheme, _, token = (header or "").rpartition(" ")
    return kopf.ConnectionInfo(
        server=settings.host,
        ca_path=settings.ssl_ca_cert,
        insecure=not settings.verify_ssl,
        scheme=scheme or None,
        token=token or None,
        certificate_path=settings.cert_file,
        private_key_path=settings.key_file,
    )
