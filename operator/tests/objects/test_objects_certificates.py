"""The certificates of a group: its own authority, what cert-manager is asked for, and which containers get which key.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from objects_scene import broker_sets, containers, facts, group, mounts, of_kind, rendered

from gantry_operator.objects import Facts, authority_secret, derive_authority
from gantry_operator.objects.authority import Authority
from gantry_operator.objects.base import Object
from gantry_operator.objects.certificates import authority_secret_of
from gantry_spec.manifest.group import BrokerGroup

KEY = bytes(range(32))
CREATED = datetime(2026, 3, 1, 12, 30, 15, tzinfo=UTC)
OWN: dict[str, Any] = {"access": {"certificates": {"issuer": "Operator", "names": ["mq.example.com"]}}}
ISSUED: dict[str, Any] = {"access": {"certificates": {"issuer": "CertManager", "issuerRef": {"name": "ca"}}}}
PROXIES: dict[str, Any] = {"proxy": {"replicas": 1}}
OUTSIDE = {"orders-0-external": "203.0.113.10:10911", "orders-nameserver-external": "mq.example.net:9876"}


def authority(one: BrokerGroup | None = None, key: bytes = KEY, created: datetime = CREATED) -> Authority:
    """Return the authority of a group."""
    return derive_authority(key, group(**OWN) if one is None else one, created)


def known(**more: Any) -> Facts:
    """Return facts with the certificate of the authority."""
    return facts(authority=authority().certificate, **more)


def pods(*specs: dict[str, Any]) -> dict[str, Object]:
    """Return the pod templates of brokers, name servers and proxies, by component."""
    merged = {key: value for spec in specs for key, value in spec.items()}
    objects = rendered(group(**merged), known())
    sets = of_kind(objects, "StatefulSet") | of_kind(objects, "Deployment")
    found = {one["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"]: one for one in sets.values()}
    return {component: one["spec"]["template"] for component, one in found.items()}


# -- the authority -----------------------------------------------------------------------------------------------------


def test_authority_of_a_group_is_always_the_same() -> None:
    """A new operator, and a Secret that is created again, have the same bytes: clients keep trusting the group."""
    derive_authority.__globals__["_derive"].cache_clear()
    first = authority()
    derive_authority.__globals__["_derive"].cache_clear()

    assert authority() == first


@pytest.mark.parametrize(
    "other",
    [
        authority(group(name="bills", **OWN)),
        authority(group(namespace="store", **OWN)),
        authority(key=bytes(reversed(KEY))),
    ],
    ids=["another group", "another namespace", "another operator"],
)
def test_no_two_groups_share_an_authority(other: Authority) -> None:
    """A certificate of one group is worth nothing in another."""
    assert other.key != authority().key
    assert other.certificate != authority().certificate


def test_authority_can_sign_certificates_and_nothing_below() -> None:
    """It is a root with its own key, from the group's creation for twenty years, also for clocks an hour behind."""
    certificate = x509.load_pem_x509_certificate(authority().certificate.encode())
    key = serialization.load_pem_private_key(authority().key.encode(), password=None)
    basic = certificate.extensions.get_extension_for_class(x509.BasicConstraints)

    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert key.public_key() == certificate.public_key()
    certificate.verify_directly_issued_by(certificate)
    assert (basic.critical, basic.value.ca, basic.value.path_length) == (True, True, 0)
    assert certificate.not_valid_before_utc == CREATED - timedelta(hours=1)
    assert certificate.not_valid_after_utc - certificate.not_valid_before_utc == timedelta(days=7300)


def test_no_text_of_an_authority_has_its_key() -> None:
    """A log line with the object, or an error with it, cannot leak the key."""
    assert "KEY" not in repr(authority()) and "CERT" not in repr(authority())


def test_secret_of_the_authority_has_certificate_and_key() -> None:
    """It is owned by the group, so Kubernetes deletes it with the group."""
    document = authority_secret(group(**OWN), authority())

    assert {name: base64.b64decode(text).decode() for name, text in document["data"].items()} == {
        "ca.crt": authority().certificate,
        "ca.key": authority().key,
    }
    assert document["metadata"]["name"] == "orders-authority"
    assert document["metadata"]["ownerReferences"][0]["uid"] == "uid-of-orders"


# -- pods of a group with an authority of its own ----------------------------------------------------------------------


def test_clients_find_the_authority_in_a_config_map() -> None:
    """It has the certificate but no key, and the names that pods do not know themselves."""
    objects = rendered(group(**OWN), known(external_addresses=OUTSIDE))
    found = of_kind(objects, "ConfigMap")["orders-authority"]

    assert found["data"] == {
        "ca.crt": authority().certificate,
        "names": "mq.example.com\n203.0.113.10\nmq.example.net\n",
    }
    assert "PRIVATE" not in str(objects)


def test_another_name_changes_no_pod() -> None:
    """Names are in the ConfigMap, so a new external address neither restarts a broker nor a proxy."""
    before = rendered(group(**OWN, **PROXIES), known())
    after = rendered(group(**OWN, **PROXIES), known(external_addresses=OUTSIDE))
    changed = {one["metadata"]["name"] for one, other in zip(before, after, strict=True) if one != other}

    assert changed == {"orders-authority"}


def test_each_pod_issues_a_certificate_for_its_own_names() -> None:
    """kubelet puts the name of the pod in; no pod gets the names of another component."""
    found = pods(OWN, PROXIES)
    hosts = {}
    for component, container in (("broker", "sidecar"), ("nameserver", "nameserver"), ("proxy", "proxy")):
        words = containers(found[component])[container]["args"]
        hosts[component] = [words[place + 1] for place, word in enumerate(words) if word == "--certificate-host"]

    assert hosts == {
        "broker": [
            "$(POD_NAME).shop.svc",
            "orders-0.shop.svc",
            "*.orders-0-master.shop.svc",
            "*.orders-0-slave.shop.svc",
        ],
        "nameserver": ["orders-nameserver.shop.svc", "*.orders-nameserver.shop.svc"],
        "proxy": ["orders-proxy.shop.svc"],
    }


def holders(found: dict[str, Object]) -> set[str]:
    """Return the containers that can read the authority's key."""
    return {
        name
        for template in found.values()
        for name, one in containers(template).items()
        if "authority-key" in mounts(one)
    }


def test_only_containers_that_issue_can_read_the_key() -> None:
    """A broker reads its certificate alone; where proxies have a certificate of their own, they get no key either."""
    own = {"proxy": {"replicas": 1, "tls": {"secret": "grpc"}}}

    assert holders(pods(OWN, PROXIES)) == {"sidecar", "nameserver", "proxy"}
    assert holders(pods(OWN, own)) == {"sidecar", "nameserver"}
    broker = containers(pods(OWN)["broker"])["broker"]
    [mounted] = [one for one in broker["volumeMounts"] if one["name"] == "certificates"]
    assert mounted["readOnly"]


def test_proxy_trusts_brokers_by_the_authority_alone() -> None:
    """It gets the certificate of the authority, not its key, where it has a certificate from another Secret."""
    template = pods(OWN, {"proxy": {"replicas": 1, "tls": {"secret": "grpc"}}})["proxy"]
    volumes = {one["name"]: one.get("secret", {}) for one in template["spec"]["volumes"]}

    assert volumes["authority"]["secretName"] == "orders-authority"
    assert [item["key"] for item in volumes["authority"]["items"]] == ["ca.crt"]
    assert volumes["certificates"]["secretName"] == "grpc"


def test_pipelines_get_the_certificate_of_the_authority() -> None:
    """They mount only `ca.crt` of this Secret; for other groups it is the one with the certificates."""
    assert authority_secret_of(group(**OWN)) == "orders-authority"
    assert authority_secret_of(group(**ISSUED)) == "orders-certificates"
    assert authority_secret_of(group(access={"tlsSecret": "mine"})) == "mine"
    assert authority_secret_of(group()) == ""


# -- cert-manager ------------------------------------------------------------------------------------------------------


def certificate_of(**spec: Any) -> Object:
    """Return the spec of the Certificate."""
    found: Object = of_kind(rendered(group(**spec), facts(external_addresses=OUTSIDE)), "Certificate")[
        "orders-certificates"
    ]["spec"]
    return found


def test_cert_manager_is_asked_for_all_names_of_the_group() -> None:
    """One certificate serves all pods: each shard, each member, name servers, proxies, and addresses outside."""
    spec = certificate_of(**ISSUED, **PROXIES, shards=2)

    for name in (
        *("orders-0.shop.svc", "orders-1.shop.svc.cluster.local", "*.orders-1-slave.shop.svc", "orders-0.shop"),
        *("orders-1-slave-0.shop.svc", "*.orders-nameserver.shop.svc", "orders-proxy.shop.svc", "mq.example.net"),
    ):
        assert name in spec["dnsNames"], name
    assert spec["ipAddresses"] == ["203.0.113.10"]
    assert spec["secretName"] == "orders-certificates"
    assert spec["issuerRef"] == {"name": "ca", "kind": "Issuer", "group": "cert-manager.io"}
    assert spec["usages"] == ["digital signature", "server auth", "client auth"]
    assert len(spec["dnsNames"]) == len(set(spec["dnsNames"]))


def test_pods_mount_the_secret_of_cert_manager() -> None:
    """Nothing else differs from a Secret of the user, so the same pods work with both."""
    issued, own = pods(ISSUED, PROXIES), pods({"access": {"tlsSecret": "orders-certificates"}}, PROXIES)

    assert {name: one["spec"] for name, one in issued.items()} == {name: one["spec"] for name, one in own.items()}
    assert not holders(issued)


@pytest.mark.parametrize("spec", [OWN, ISSUED], ids=["own", "cert-manager"])
def test_every_port_uses_tls(spec: dict[str, Any]) -> None:
    """Brokers, name servers, sidecars and probes follow from the issuer as they do from a Secret."""
    objects = rendered(group(**spec), known(has_pod_monitor=True))
    template = next(iter(broker_sets(objects).values()))["spec"]["template"]
    conf = next(one["value"] for one in containers(template)["broker"]["env"] if one["name"] == "GANTRY_BROKER_CONF")

    assert "tlsMode=enforcing" in conf and "haTlsTrustCertPath=/etc/gantry/certificates/ca.crt" in conf
    assert containers(template)["sidecar"]["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    assert of_kind(objects, "PodMonitor")["orders"]["spec"]["podMetricsEndpoints"][0]["scheme"] == "https"
    name_server = containers(of_kind(objects, "StatefulSet")["orders-nameserver"]["spec"]["template"])["nameserver"]
    assert "tlsMode=enforcing" in name_server["env"][0]["value"]
