"""Groups with TLS and accounts: only clients that have both are served, also while either is replaced.

Kubernetes updates a Secret in running pods with a delay of up to about a minute, for which the tests wait.
"""

from __future__ import annotations

import hashlib
import ssl
from typing import NamedTuple

import pytest
import trustme
from gantry_cluster.api import Object
from gantry_cluster.capabilities import Capability
from gantry_cluster.commands import wait_until
from gantry_cluster.group_faults import NOTICED_SECONDS_MAX
from gantry_cluster.group_life import pod_runs
from gantry_cluster.group_secrets import (
    CODE_SUCCESS,
    accounts,
    credentials,
    probe_answers,
    put_secret,
    read_served_certificates,
    wait_all,
)
from gantry_cluster.groups import ClientSecrets, Group
from gantry_cluster.namespaces import GROUP, NamespaceFactory
from gantry_cluster.specs import SMALL
from gantry_cluster.trial import run_fault_under_load

pytestmark = [pytest.mark.slow, pytest.mark.cluster_can(Capability.RUN_GROUPS)]

POD_SECONDS_MAX = 30.0
"""The limit of the interruption of clients if the master's pod is deleted."""

REPLACED_SECONDS_MAX = 5.0
"""The limit of the interruption while certificates and accounts are replaced, and the role moves with the new ones."""
TAKEN_SECONDS_MAX = 150.0
"""The limit from a Secret's edit until every server uses it."""

CERTIFICATES, ACCOUNTS, APPLICATION = "certificates", "accounts", "application"
"""The names of the Secrets: for TLS, for the accounts of brokers, and with the account of the client."""

OWN, OWN_NEXT, CLIENTS = (
    ("brokers-key", "brokers-secret"),
    ("brokers-next-key", "brokers-next-secret"),
    ("clients-key", "clients-secret"),
)
"""Access key and secret key: of the brokers at first and later, and of clients."""

SECURED: Object = SMALL | {"access": {"tlsSecret": CERTIFICATES, "aclSecret": ACCOUNTS}}


class Certificate(NamedTuple):
    """A new certificate as the data of a Secret."""

    data: dict[str, bytes]
    fingerprint: str


def certificate(authority: trustme.CA) -> Certificate:
    """Issue a certificate without addresses, because a group does not verify them."""
    issued = authority.issue_cert("gantry")
    chain = [part.bytes() for part in issued.cert_chain_pems]
    data = {"tls.crt": b"".join(chain), "tls.key": issued.private_key_pem.bytes(), "ca.crt": authority.cert_pem.bytes()}
    return Certificate(data, hashlib.sha256(ssl.PEM_cert_to_DER_cert(chain[0].decode())).hexdigest())


class Scene:
    """A group with TLS and accounts, its authority, and a client that has an account."""

    def __init__(self, namespaces: NamespaceFactory, name: str) -> None:
        self.authority = trustme.CA()
        namespace = namespaces.create(name)
        self.first = certificate(self.authority)
        put_secret(namespace, CERTIFICATES, self.first.data)
        put_secret(namespace, ACCOUNTS, accounts(OWN, CLIENTS))
        put_secret(namespace, APPLICATION, {"credentials": credentials(CLIENTS)})
        group = Group(namespace, GROUP, ClientSecrets(authority=CERTIFICATES, account=APPLICATION))
        self.group = namespaces.start_group(group, SECURED)

    def probe_answers(self, account: tuple[str, str] | None, *, is_tls: bool = True) -> set[str]:
        """Return the set of answers of all servers to an account."""
        authority = self.authority.cert_pem.bytes().decode() if is_tls else ""
        return set(probe_answers(self.group, account, authority).values())


def test_clients_with_tls_and_an_account_lose_nothing_and_others_are_refused(namespaces: NamespaceFactory) -> None:
    """Plain text is closed at the first byte, and clients without an account are refused, by brokers and name servers
    alike.
    """
    scene = Scene(namespaces, "secured")
    [master] = scene.group.masters()
    assert scene.probe_answers(CLIENTS) == {CODE_SUCCESS}
    assert CODE_SUCCESS not in scene.probe_answers(None)
    assert scene.probe_answers(CLIENTS, is_tls=False) == {"closed"}

    outcome = run_fault_under_load(
        scene.group, "secured pod deleted", lambda: print(f"back in {scene.group.replace_pod(master):.1f} s")
    )

    outcome.check_limits(POD_SECONDS_MAX)


def test_certificates_and_accounts_are_replaced_without_a_restart(namespaces: NamespaceFactory) -> None:
    """Brokers use another account afterwards, their old one is refused, and slaves follow with the new keys."""
    scene = Scene(namespaces, "renewed")
    group, before = scene.group, pod_runs(scene.group)
    second = certificate(scene.authority)
    pods = [*group.brokers(), *group.name_servers()]
    assert read_served_certificates(group) == {pod: {scene.first.fingerprint} for pod in pods}

    def replace() -> None:
        put_secret(group.namespace, CERTIFICATES, second.data)
        put_secret(group.namespace, ACCOUNTS, accounts(OWN_NEXT, OWN, CLIENTS))
        wanted = {pod: {second.fingerprint} for pod in pods}
        took = wait_all(
            "the new certificate everywhere", lambda: read_served_certificates(group) == wanted, TAKEN_SECONDS_MAX
        )
        print(f"RESULT every server shows the new certificate after {took:.0f} s, at most {TAKEN_SECONDS_MAX:.0f}")
        wait_all(
            "the new account everywhere", lambda: scene.probe_answers(OWN_NEXT) == {CODE_SUCCESS}, TAKEN_SECONDS_MAX
        )
        assert scene.probe_answers(OWN) == {CODE_SUCCESS}, "the old account is refused while the file has both"
        put_secret(group.namespace, ACCOUNTS, accounts(OWN_NEXT, CLIENTS))
        took = wait_all(
            "the old account nowhere", lambda: CODE_SUCCESS not in scene.probe_answers(OWN), TAKEN_SECONDS_MAX
        )
        print(f"RESULT every server refuses the old account after {took:.0f} s, at most {TAKEN_SECONDS_MAX:.0f}")
        [master] = group.masters()
        group.annotate("gantry.dev/promote", "0")
        wait_until("another master", lambda: group.masters() not in ([master], ["-"], [""]), NOTICED_SECONDS_MAX)

    run_fault_under_load(group, "secrets replaced", replace).check_limits(REPLACED_SECONDS_MAX)
    assert scene.probe_answers(CLIENTS) == {CODE_SUCCESS}
    assert pod_runs(group) == before, "a pod was replaced, or a container restarted"
