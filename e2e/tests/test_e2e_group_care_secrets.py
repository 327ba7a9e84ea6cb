"""Groups with TLS and accounts: clients that have both come in and nobody else does, also while either is replaced.

Kubernetes brings a Secret into pods that run when it gets to it, within about a minute; that is waited for as it comes.
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
from gantry_cluster.group_life import runs
from gantry_cluster.group_secrets import GOOD, accounts, answers, credentials, put_secret, shown, wait_all
from gantry_cluster.groups import Entry, Group
from gantry_cluster.spaces import GROUP, Spaces
from gantry_cluster.specs import SMALL
from gantry_cluster.trial import under_load

pytestmark = [pytest.mark.slow, pytest.mark.cluster_can(Capability.RUN_GROUPS)]

POD_SECONDS_MAX = 30.0
REPLACED_SECONDS_MAX = 5.0
"""Of clients, while certificates and accounts are replaced, and the role moves with the new ones."""
TAKEN_SECONDS_MAX = 150.0
"""From a Secret's edit until every server goes by it."""

CERTIFICATES, ACCOUNTS, APPLICATION = "certificates", "accounts", "application"
OWN, OWN_NEXT, CLIENTS = (
    ("brokers-key", "brokers-secret"),
    ("brokers-next-key", "brokers-next-secret"),
    ("clients-key", "clients-secret"),
)
SECURED: Object = SMALL | {"access": {"tlsSecret": CERTIFICATES, "aclSecret": ACCOUNTS}}


class Certificate(NamedTuple):
    """A new one, as a Secret has it."""

    data: dict[str, bytes]
    fingerprint: str


def certificate(authority: trustme.CA) -> Certificate:
    """It is for no address: nobody compares those in a group."""
    issued = authority.issue_cert("gantry")
    chain = [part.bytes() for part in issued.cert_chain_pems]
    data = {"tls.crt": b"".join(chain), "tls.key": issued.private_key_pem.bytes(), "ca.crt": authority.cert_pem.bytes()}
    return Certificate(data, hashlib.sha256(ssl.PEM_cert_to_DER_cert(chain[0].decode())).hexdigest())


class Scene:
    """A group with both, its authority, and a client that has an account."""

    def __init__(self, spaces: Spaces, name: str) -> None:
        self.authority = trustme.CA()
        space = spaces.make(name)
        self.first = certificate(self.authority)
        put_secret(space, CERTIFICATES, self.first.data)
        put_secret(space, ACCOUNTS, accounts(OWN, CLIENTS))
        put_secret(space, APPLICATION, {"credentials": credentials(CLIENTS)})
        group = Group(space, GROUP, Entry(authority=CERTIFICATES, account=APPLICATION))
        self.group = spaces.begin(group, SECURED)

    def answers(self, account: tuple[str, str] | None, *, is_tls: bool = True) -> set[str]:
        """How all servers together answer somebody."""
        authority = self.authority.cert_pem.bytes().decode() if is_tls else ""
        return set(answers(self.group, account, authority).values())


def test_clients_with_tls_and_an_account_lose_nothing_and_nobody_else_comes_in(spaces: Spaces) -> None:
    """Plain text ends at the first byte, and who has no account is refused, by brokers and name servers alike."""
    scene = Scene(spaces, "secured")
    [master] = scene.group.masters()
    assert scene.answers(CLIENTS) == {GOOD}
    assert GOOD not in scene.answers(None)
    assert scene.answers(CLIENTS, is_tls=False) == {"closed"}

    outcome = under_load(
        scene.group, "secured pod deleted", lambda: print(f"back in {scene.group.replace_pod(master):.1f} s")
    )

    outcome.demand(POD_SECONDS_MAX)


def test_certificates_and_accounts_are_replaced_without_a_restart(spaces: Spaces) -> None:
    """Brokers have another account afterwards, their old one is refused, and slaves follow with the new keys."""
    scene = Scene(spaces, "renewed")
    group, before = scene.group, runs(scene.group)
    second = certificate(scene.authority)
    pods = [*group.brokers(), *group.name_servers()]
    assert shown(group) == {pod: {scene.first.fingerprint} for pod in pods}

    def replace() -> None:
        put_secret(group.space, CERTIFICATES, second.data)
        put_secret(group.space, ACCOUNTS, accounts(OWN_NEXT, OWN, CLIENTS))
        wanted = {pod: {second.fingerprint} for pod in pods}
        took = wait_all("the new certificate everywhere", lambda: shown(group) == wanted, TAKEN_SECONDS_MAX)
        print(f"RESULT every server shows the new certificate after {took:.0f} s, at most {TAKEN_SECONDS_MAX:.0f}")
        wait_all("the new account everywhere", lambda: scene.answers(OWN_NEXT) == {GOOD}, TAKEN_SECONDS_MAX)
        assert scene.answers(OWN) == {GOOD}, "nobody was locked out in between"
        put_secret(group.space, ACCOUNTS, accounts(OWN_NEXT, CLIENTS))
        took = wait_all("the old account nowhere", lambda: GOOD not in scene.answers(OWN), TAKEN_SECONDS_MAX)
        print(f"RESULT every server refuses the old account after {took:.0f} s, at most {TAKEN_SECONDS_MAX:.0f}")
        [master] = group.masters()
        group.annotate("gantry.dev/promote", "0")
        wait_until("another master", lambda: group.masters() not in ([master], ["-"], [""]), NOTICED_SECONDS_MAX)

    under_load(group, "secrets replaced", replace).demand(REPLACED_SECONDS_MAX)
    assert scene.answers(CLIENTS) == {GOOD}
    assert runs(group) == before, "no pod was made anew, and no container started again"
