"""The users and policies that the administration's tools change, as immutable tables.

    AccountTables   what is stored, replicated and listed: users with passwords, entries by user
    Accounts        what the guard checks requests against, made of the tables

A change makes new tables (`account_changes`). Passwords are stored as they are: a signature can only be checked with
the secret itself.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Self, final

from gantry_access.account import Account
from gantry_access.accounts import Accounts
from gantry_access.addresses import Network
from gantry_access.policies import Action, Decision, Policies, PolicyEntry, PolicyType
from gantry_access.resources import Resource

SUBJECT_PREFIX: Final = "User:"
"""RocketMQ's prefix of a user where policies name their subject."""


class UserType(StrEnum):
    """Whether a user has every permission."""

    SUPER = "Super"
    NORMAL = "Normal"


class UserStatus(StrEnum):
    """Whether a user's requests are accepted."""

    ENABLE = "enable"
    DISABLE = "disable"


@final
@dataclass(frozen=True, slots=True)
class StoredUser:
    """One user. Its repr contains no password."""

    name: str
    password: str = field(repr=False)
    type: UserType = UserType.NORMAL
    status: UserStatus = UserStatus.ENABLE


Entries = Mapping[PolicyType, tuple[PolicyEntry, ...]]
"""The entries of one user by policy type; a type without entries is missing."""


@final
@dataclass(frozen=True, slots=True)
class AccountTables:
    """All users and policies at one moment."""

    users: Mapping[str, StoredUser] = field(default_factory=dict)
    policies: Mapping[str, Entries] = field(default_factory=dict)
    """The entries by user; a user without entries is missing."""

    change_count: int = 0
    """The number of changes since the tables were created."""

    def __repr__(self) -> str:
        return f"<AccountTables users={len(self.users)} change={self.change_count}>"

    def with_user(self, user: StoredUser) -> Self:
        """Return the tables with this user, who may exist."""
        return replace(self, users={**self.users, user.name: user}, change_count=self.change_count + 1)

    def without_user(self, name: str) -> Self:
        """Return the tables without a user and the user's policies."""
        users = {other: user for other, user in self.users.items() if other != name}
        return replace(self, users=users)._with_policies(
            {other: p for other, p in self.policies.items() if other != name}
        )

    def with_entries(self, name: str, entries: Entries) -> Self:
        """Return the tables with these policies of a user; without entries the user has none."""
        kept = {kind: rules for kind, rules in entries.items() if rules}
        policies = {other: found for other, found in self.policies.items() if other != name or kept}
        return self._with_policies({**policies, name: kept} if kept else policies)

    def _with_policies(self, policies: Mapping[str, Entries]) -> Self:
        return replace(self, policies=policies, change_count=self.change_count + 1)

    @property
    def has_super_user(self) -> bool:
        """Whether an enabled user has every permission."""
        return any(user.type is UserType.SUPER and user.status is UserStatus.ENABLE for user in self.users.values())


def parse_network(text: str) -> Network | None:
    """Return the network of an address or of an address with a prefix length; None if it is neither."""
    _, slash, prefix = text.partition("/")
    if slash and not (prefix.isascii() and prefix.isdigit()):
        return None
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def make_entry(
    resource: Resource, actions: tuple[Action, ...], decision: Decision, sources: tuple[str, ...]
) -> PolicyEntry:
    """Return an entry. Raises ValueError for a source that is no address or network."""
    networks = [parse_network(source) for source in sources]
    found = tuple(network for network in networks if network is not None)
    if len(found) < len(networks):
        raise ValueError("a source is not an address or network")
    return PolicyEntry(resource, actions, decision, sources, found)


def build_accounts(
    tables: AccountTables, *, is_authorizing: bool, before: tuple[AccountTables, Accounts] | None = None
) -> Accounts:
    """Return the accounts of the tables.

    Without ``is_authorizing`` every enabled user has every permission. ``before`` are earlier tables and their
    accounts: those of unchanged users are used again, because preparing a secret is expensive.
    """
    old_tables, old = before if before is not None else (AccountTables(), Accounts())
    by_key: dict[str, Account] = {}
    disabled: dict[str, Account] = {}
    for name, user in tables.users.items():
        entries = tables.policies.get(name)
        account = old.by_key.get(name) or old.disabled.get(name)
        if account is None or old_tables.users[name] is not user or old_tables.policies.get(name) is not entries:
            account = make_account(user, entries or {}, is_authorizing=is_authorizing)
        (by_key if user.status is UserStatus.ENABLE else disabled)[name] = account
    return Accounts(by_key=by_key, disabled=disabled)


def make_account(user: StoredUser, entries: Entries, *, is_authorizing: bool) -> Account:
    """Return the account of a user; without ``is_authorizing`` it has every permission."""
    return Account(
        access_key=user.name,
        secret=user.password.encode("utf-8", "replace"),
        is_admin=user.type is UserType.SUPER or not is_authorizing,
        policies=Policies(entries.get(PolicyType.CUSTOM, ()), entries.get(PolicyType.DEFAULT, ())),
    )
