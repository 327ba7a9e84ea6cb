"""A stand-in for cert-manager in test clusters: its kind Certificate, and an issuer that a test calls.

It honours what the operator and pods use: `spec.secretName`, `dnsNames`, `ipAddresses`, the files of the Secret, and
the condition Ready.
"""

from __future__ import annotations

import hashlib
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trustme

from gantry_cluster.api import Object
from gantry_cluster.cluster import Cluster
from gantry_cluster.commands import wait_until
from gantry_cluster.errors import ApiRefused
from gantry_cluster.group_secrets import put_secret
from gantry_cluster.pods import Namespace

DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
API: Final = "apis/cert-manager.io/v1"
KIND_SECONDS_MAX: Final = 60.0
CERTIFICATE_SECONDS_MAX: Final = 60.0

DEFINITION: Final[Object] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "certificates.cert-manager.io"},
    "spec": {
        "group": "cert-manager.io",
        "scope": "Namespaced",
        "names": {"kind": "Certificate", "plural": "certificates", "singular": "certificate"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            part: {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                            for part in ("spec", "status")
                        },
                    }
                },
            }
        ],
    },
}


@contextmanager
def certificate_kind(cluster: Cluster) -> Iterator[None]:
    """Give the cluster the kind Certificate, as an installation of cert-manager does."""

    def is_served() -> bool:
        try:
            return cluster.api.items(f"/{API}/certificates") == []
        except ApiRefused:
            return False

    cluster.api.create(DEFINITIONS, DEFINITION)
    try:
        wait_until("the kind Certificate", is_served, KIND_SECONDS_MAX)
        yield
    finally:
        cluster.api.delete(f"{DEFINITIONS}/{DEFINITION['metadata']['name']}")


def issue(namespace: Namespace, name: str, authority: trustme.CA) -> str:
    """Issue what a Certificate asks for, as cert-manager does. Return the fingerprint of the new certificate."""
    path = f"{namespace.path('certificates', API)}/{name}"
    spec = wait_for_certificate(namespace, name)["spec"]
    issued = authority.issue_cert(*spec["dnsNames"], *spec.get("ipAddresses", []))
    chain = [part.bytes() for part in issued.cert_chain_pems]
    put_secret(
        namespace,
        spec["secretName"],
        {"tls.crt": b"".join(chain), "tls.key": issued.private_key_pem.bytes(), "ca.crt": authority.cert_pem.bytes()},
    )
    report(namespace, path, "True", "Certificate is up to date and has not expired")
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(chain[0].decode())).hexdigest()


def refuse(namespace: Namespace, name: str, message: str) -> None:
    """Report that a Certificate cannot be issued."""
    wait_for_certificate(namespace, name)
    report(namespace, f"{namespace.path('certificates', API)}/{name}", "False", message)


def report(namespace: Namespace, path: str, status: str, message: str) -> None:
    """Write the condition Ready of a Certificate."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    ready = {"type": "Ready", "status": status, "reason": "Test", "message": message, "lastTransitionTime": now}
    namespace.cluster.api.merge(f"{path}/status", {"status": {"conditions": [ready]}})


def wait_for_certificate(namespace: Namespace, name: str) -> Object:
    """Wait until the operator has created a Certificate, and return it."""
    found: list[Object] = []

    def exists() -> bool:
        items = namespace.cluster.api.items(namespace.path("certificates", API))
        found[:] = [one for one in items if one["metadata"]["name"] == name]
        return bool(found)

    wait_until(f"the Certificate {name}", exists, CERTIFICATE_SECONDS_MAX)
    return found[0]
