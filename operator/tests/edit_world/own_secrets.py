"""The Secrets that a group refers to, with certificates for this machine."""

from __future__ import annotations

from collections.abc import Mapping

import trustme
from edit_world.rows_of_groups import CERT_MANAGER_SECRET, CERTIFICATES

Secrets = Mapping[str, Mapping[str, str]]
"""The content of Secrets by name and key."""


def certificates() -> Secrets:
    """Return Secrets with certificates of one authority for 127.0.0.1, also the one that cert-manager would write."""
    authority, found = trustme.CA(), {}
    for name, ends in CERTIFICATES.items():
        issued = authority.issue_cert("127.0.0.1", not_after=ends)
        found[name] = {
            "tls.crt": "".join(blob.bytes().decode() for blob in issued.cert_chain_pems),
            "tls.key": issued.private_key_pem.bytes().decode(),
            "ca.crt": authority.cert_pem.bytes().decode(),
        }
    found[CERT_MANAGER_SECRET] = found["certificates"]
    return found
