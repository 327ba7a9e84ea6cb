"""The certificates of a group's pods, by ``spec.access``. Pods read them in the folder ``configuration.CERTIFICATES``.

    tlsSecret              the Secret of the user
    issuer CertManager     the Secret g-certificates, which cert-manager writes for the Certificate of the same name
    issuer Operator        a folder in memory, where each pod issues a certificate for itself (``gantry pod``). For
                           that it reads the authority in the Secret g-authority, and in the ConfigMap g-authority the
                           names besides its own: those of the spec, and the addresses for clients outside

All of them have the files ``tls.crt``, ``tls.key`` and ``ca.crt``, and may change while pods run.
"""

from __future__ import annotations

import ipaddress
from typing import Final

from gantry_operator.objects import configuration, names, pod_parts
from gantry_operator.objects.base import Object, labels, make_object
from gantry_operator.objects.facts import Facts
from gantry_remoting import split_address
from gantry_spec.cluster_objects import host_spellings
from gantry_spec.manifest.group import BrokerGroup
from gantry_spec.manifest.parts import CertificateIssuer

CERTIFICATE: Final = ("cert-manager.io/v1", "Certificate")
AUTHORITY_FOLDER: Final = "/etc/gantry/authority-key"
NAMES_FOLDER: Final = "/etc/gantry/certificate-names"
NAMES_FILE: Final = "names"
AUTHORITY_FILE: Final = "ca.crt"

FOLDER_BYTES: Final = "1Mi"
"""The most that a pod's own certificates may use; they need some KiB."""

DURATION: Final = "2160h"
RENEW_BEFORE: Final = "720h"
"""When cert-manager renews a certificate: 30 of 90 days before its end."""


def secret_of(group: BrokerGroup) -> str:
    """Return the Secret that pods mount; empty without TLS, and where each pod issues its own certificate."""
    access = group.spec.access
    if access.certificates.issuer is CertificateIssuer.CERT_MANAGER:
        return names.certificate_name(group.metadata.name)
    return access.tls_secret


def authority_secret_of(group: BrokerGroup) -> str:
    """Return the Secret whose ``ca.crt`` verifies the pods; empty without TLS."""
    return names.authority_name(group.metadata.name) if group.spec.access.has_own_authority else secret_of(group)


# -- parts of pods -----------------------------------------------------------------------------------------------------


def volumes(group: BrokerGroup) -> list[Object]:
    """Return the volumes of a pod whose containers use the mounts below."""
    if group.spec.access.has_own_authority:
        name = names.authority_name(group.metadata.name)
        items = [{"key": NAMES_FILE, "path": NAMES_FILE}]
        return [
            {"name": "certificates", "emptyDir": {"medium": "Memory", "sizeLimit": FOLDER_BYTES}},
            pod_parts.secret_volume("authority-key", name),
            {
                "name": "certificate-names",
                "configMap": {"name": name, "defaultMode": 0o444, "optional": True, "items": items},
            },
        ]
    secret = secret_of(group)
    return [pod_parts.secret_volume("certificates", secret)] if secret else []


def mounts(group: BrokerGroup, *, is_issuing: bool = False) -> list[Object]:
    """Return the mounts of a container that reads the certificates, or also issues those of its pod."""
    access = group.spec.access
    if not access.has_tls:
        return []
    if not (is_issuing and access.has_own_authority):
        return [pod_parts.mount("certificates", configuration.CERTIFICATES, is_read_only=True)]
    return [
        pod_parts.mount("certificates", configuration.CERTIFICATES),
        pod_parts.mount("authority-key", AUTHORITY_FOLDER, is_read_only=True),
        pod_parts.mount("certificate-names", NAMES_FOLDER, is_read_only=True),
    ]


def issue_arguments(group: BrokerGroup, hosts: list[str]) -> list[str]:
    """Return the options with which a command of ``gantry pod`` issues a certificate for these hosts; none otherwise.

    ``$(POD_NAME)`` in a host is replaced by kubelet.
    """
    if not group.spec.access.has_own_authority:
        return []
    words = ["--authority", AUTHORITY_FOLDER, "--certificates", configuration.CERTIFICATES]
    words += ["--certificate-names", f"{NAMES_FOLDER}/{NAMES_FILE}"]
    return words + [word for host in hosts for word in ("--certificate-host", host)]


def variables(group: BrokerGroup) -> list[Object]:
    """Return the environment variables with the addresses of the pod, for a container that issues its certificate."""
    return [pod_parts.field_variable("POD_IPS", "status.podIPs")] if group.spec.access.has_own_authority else []


# -- host names --------------------------------------------------------------------------------------------------------


def broker_hosts(group: BrokerGroup, shard: int) -> list[str]:
    """Return the host names of a broker's pod, in every role, as its pod template has them."""
    name, namespace = group.metadata.name, group.metadata.namespace
    return [
        f"$(POD_NAME).{namespace}.svc",
        f"{names.shard_name(name, shard)}.{namespace}.svc",
        *_wildcards(namespace, names.master_set(name, shard), names.slave_set(name, shard)),
    ]


def name_server_hosts(group: BrokerGroup) -> list[str]:
    """Return the host names of the name servers."""
    name, namespace = names.name_server_set(group.metadata.name), group.metadata.namespace
    return [f"{name}.{namespace}.svc", *_wildcards(namespace, name)]


def proxy_hosts(group: BrokerGroup) -> list[str]:
    """Return the host names of the proxies."""
    return [f"{names.proxy_name(group.metadata.name)}.{group.metadata.namespace}.svc"]


def _wildcards(namespace: str, *services: str) -> list[str]:
    """Return the host names of all pods behind headless Services."""
    return [f"*.{service}.{namespace}.svc" for service in services]


# -- objects -----------------------------------------------------------------------------------------------------------


def certificate_objects(group: BrokerGroup, facts: Facts) -> list[Object]:
    """Return the Certificate for cert-manager, or the ConfigMap with the group's authority and further names."""
    issuer = group.spec.access.certificates.issuer
    if issuer is CertificateIssuer.CERT_MANAGER:
        return [_certificate(group, facts)]
    if issuer is CertificateIssuer.OPERATOR:
        data = {
            AUTHORITY_FILE: facts.authority,
            NAMES_FILE: "".join(f"{one}\n" for one in _outer_names(group, facts)),
        }
        name = names.authority_name(group.metadata.name)
        return [make_object(group, ("v1", "ConfigMap"), name, labels(group, names.CERTIFICATES), {"data": data})]
    return []


def _outer_names(group: BrokerGroup, facts: Facts) -> list[str]:
    """Return the names of the spec, and the hosts of the addresses for clients outside of the cluster."""
    hosts = {split_address(address)[0] for address in facts.external_addresses.values()}
    return [*group.spec.access.certificates.names, *sorted(hosts - {*group.spec.access.certificates.names})]


def _certificate(group: BrokerGroup, facts: Facts) -> Object:
    """Return the Certificate for all pods of the group, with the names of all of them."""
    certificates, name = group.spec.access.certificates, names.certificate_name(group.metadata.name)
    found = list(dict.fromkeys([*_all_hosts(group, facts), *_outer_names(group, facts)]))
    addresses = [one for one in found if _is_address(one)]
    body = {
        "secretName": name,
        "secretTemplate": {"labels": labels(group, names.CERTIFICATES)},
        "duration": DURATION,
        "renewBefore": RENEW_BEFORE,
        "privateKey": {"algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always"},
        "usages": ["digital signature", "server auth", "client auth"],
        "issuerRef": {
            "name": certificates.issuer_ref.name,
            "kind": certificates.issuer_ref.kind,
            "group": certificates.issuer_ref.group,
        },
        "dnsNames": [one for one in found if one not in addresses],
    } | ({"ipAddresses": addresses} if addresses else {})
    return make_object(group, CERTIFICATE, name, labels(group, names.CERTIFICATES), {"spec": body})


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _all_hosts(group: BrokerGroup, facts: Facts) -> list[str]:
    """Return the host names of all pods and Services of the group.

    Only those that people write have all spellings, because a chain of certificates is limited to 100 kB.
    """
    name, namespace = group.metadata.name, group.metadata.namespace
    written = name_server_hosts(group) if group.spec.name_servers.count else []
    written += proxy_hosts(group) if group.spec.proxy.replicas else []
    others = []
    for shard in configuration.shard_numbers(group, facts):
        _, service, *wildcards = broker_hosts(group, shard)
        written.append(service)
        others += wildcards
        for member in configuration.member_numbers(group, facts, shard):
            others.append(f"{names.member_pod(name, shard, member)}.{namespace}.svc")
    return [one for host in written for one in host_spellings(host)] + others
