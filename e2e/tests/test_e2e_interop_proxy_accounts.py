"""Users that brokers store, read by proxies: the judge of the answers, and the run itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from gantry_interop import apache_servers, java, proxied, proxy_accounts
from gantry_interop.errors import DeadlineExceeded
from gantry_interop.proxy_accounts import ALICE, ALLOWED, FOREIGN, OK, REFUSED, AccountsResult, judge

from gantry_access import Credentials


class FakeServers:
    """A broker with users, and a proxy that reads them; ``faults`` names what it gets wrong."""

    def __init__(self, *faults: str) -> None:
        self._faults = faults
        self._users: dict[str, tuple[str, list[str]]] = {}

    def create_user(self, account: Credentials, rules: Mapping[str, list[str]]) -> None:
        self._users[account.access_key] = account.secret_key, list(rules)

    def disable(self, account: Credentials) -> None:
        if "keeps disabled users" not in self._faults:
            del self._users[account.access_key]

    def send(self, account: Credentials, topic: str) -> str:
        secret, rules = self._users.get(account.access_key, ("", []))
        if not secret and "knows no users" not in self._faults and "accepts unknown users" in self._faults:
            return OK
        is_known = bool(secret) and "knows no users" not in self._faults
        has_password = secret == account.secret_key or "checks no password" in self._faults
        is_allowed = f"Topic:{topic}" in rules or "checks no policy" in self._faults
        return OK if is_known and has_password and is_allowed else REFUSED

    def judged(self) -> AccountsResult:
        return judge("a proxy", "a broker", self, self.send)


@pytest.mark.parametrize(
    ("fault", "broken"),
    [
        ("", ()),
        ("checks no password", ("a wrong password: ok",)),
        ("checks no policy", ("another topic: ok",)),
    ],
)
def test_access_that_no_rule_allows_is_named(fault: str, broken: tuple[str, ...]) -> None:
    """Each access has its line; servers without a fault have none."""
    assert FakeServers(fault).judged().broken == broken


@pytest.mark.parametrize("fault", ["knows no users", "keeps disabled users", "accepts unknown users"])
def test_user_that_never_changes_ends_the_run(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """A user who never gets access, or never loses it, is a failure after a limited time."""
    monkeypatch.setattr(proxy_accounts, "KNOWN_SECONDS_MAX", 0.0)
    monkeypatch.setattr(proxy_accounts, "REVOKED_SECONDS_MAX", 0.0)
    with pytest.raises(DeadlineExceeded):
        FakeServers(fault).judged()


def test_fake_servers_keep_the_rules() -> None:
    """The twin of the faults: without one, only the user with the password gets to the allowed topic."""
    servers = FakeServers()
    servers.create_user(ALICE, {f"Topic:{ALLOWED}": ["Pub"]})

    assert (servers.send(ALICE, ALLOWED), servers.send(ALICE, FOREIGN)) == (OK, REFUSED)


@pytest.mark.slow
@pytest.mark.needs_java
@pytest.mark.parametrize("version", proxied.VERSIONS)
def test_proxies_read_the_users_of_the_other_broker(version: str, tmp_path: Path) -> None:
    """Gantry's proxy in front of Apache's broker, and Apache's proxy in front of Gantry's."""
    java.build()
    apache_servers.class_path(version)

    results = proxied.run_all([version], ["accounts"], [], 0, tmp_path, lambda result: None)

    assert [result.line() for result in results if not result.is_ok] == []
    assert len(results) == 2
