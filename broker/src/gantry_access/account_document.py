"""The document of stored users and policies: the content of `accounts.json`, and of the table that slaves receive.

Invalid parts make the whole document invalid: half of it must not define the permissions.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gantry_access.policies import Action, Decision, PolicyEntry, PolicyType
from gantry_access.resources import parse_resource
from gantry_access.stored_accounts import AccountTables, Entries, StoredUser, UserStatus, UserType, make_entry
from gantry_wire.commands.accounts import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from gantry_wire.commands.clients import Document

BYTES_MAX: Final = 8 << 20
"""Limit of an encoded document. It is copied to slaves as one frame, and a change encodes it in the event loop."""


class AccountDocument(Document):
    """All users with their passwords, and all policies."""

    users: list[UserInfo] = msgspec.field(default_factory=list)
    acls: list[AclInfo] = msgspec.field(default_factory=list)
    change_count: int = 0


def write_tables(tables: AccountTables) -> AccountDocument:
    """Return the document of the tables."""
    return AccountDocument(
        users=[
            UserInfo(username=one.name, password=one.password, user_type=one.type.value, user_status=one.status.value)
            for one in tables.users.values()
        ],
        acls=[AclInfo(subject=name, policies=describe_entries(tables.policies[name])) for name in tables.policies],
        change_count=tables.change_count,
    )


def describe_entries(entries: Entries, part: str = "") -> list[PolicyInfo]:
    """Return entries as the tools list them, for resources whose text contains ``part``."""
    found: list[PolicyInfo] = []
    for kind, rules in entries.items():
        shown = [_describe_entry(rule) for rule in rules if part in rule.resource.key]
        if shown:
            found.append(PolicyInfo(policy_type=kind.value, entries=shown))
    return found


def _describe_entry(entry: PolicyEntry) -> PolicyEntryInfo:
    return PolicyEntryInfo(
        resource=entry.resource.key,
        actions=[action.value for action in entry.actions],
        source_ips=list(entry.sources) or None,
        decision=entry.decision.value,
    )


def read_tables(document: AccountDocument) -> AccountTables:
    """Return the tables of a document. Raises ValueError for an invalid one; the error has no password."""
    users = {user.name: user for user in map(_read_user, document.users)}
    policies = {acl.subject or "": read_entries(acl) for acl in document.acls}
    if not users.keys() >= policies.keys():
        raise ValueError("invalid accounts: policies of a user who does not exist")
    return AccountTables(users, policies, document.change_count)


def _read_user(info: UserInfo) -> StoredUser:
    if not info.username or not info.password:
        raise ValueError("invalid accounts: a user without a name or a password")
    return StoredUser(info.username, info.password, UserType(info.user_type or ""), UserStatus(info.user_status or ""))


def read_entries(acl: AclInfo) -> Entries:
    """Return the entries of one user. Raises ValueError for invalid ones."""
    return {
        PolicyType(policy.policy_type or ""): tuple(_read_entry(info) for info in policy.entries or ())
        for policy in acl.policies or ()
    }


def _read_entry(info: PolicyEntryInfo) -> PolicyEntry:
    resource = parse_resource(info.resource)
    if resource is None:
        raise ValueError("invalid accounts: a policy without a resource")
    return make_entry(
        resource, tuple(map(Action, info.actions)), Decision(info.decision or ""), tuple(info.source_ips or ())
    )
