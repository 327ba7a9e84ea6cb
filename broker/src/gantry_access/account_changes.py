"""The changes of users and policies: what RocketMQ's tools may ask for, with its codes and texts.

Each function takes the present tables and a request, and returns new tables, or raises ``ChangeRefused``. Nothing here
reads a file or a connection. As in RocketMQ

- only a Super user may create, change or delete a Super user, and nothing prevents deleting the last one;
- a policy for a resource that the user's policy of the same type has already replaces that entry;
- deleting a user who does not exist succeeds, deleting policies that do not exist does not;
- an unknown type or status of a user counts as absent, and unknown actions are left out.

The limits are ours: the tables are copied to slaves as one document. So is the refusal to delete the policies of a
resource that cannot be read: RocketMQ takes it for a request to delete all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final, NoReturn, TypeVar, final

from gantry_access.policies import Action, Decision, PolicyEntry, PolicyType
from gantry_access.resources import parse_resource
from gantry_access.stored_accounts import (
    SUBJECT_PREFIX,
    AccountTables,
    Entries,
    StoredUser,
    UserStatus,
    UserType,
    make_entry,
)
from gantry_wire.codes import ResponseCode
from gantry_wire.commands.accounts import AclInfo, PolicyEntryInfo, UserInfo

USERS_MAX: Final = 10_000
"""Limit of stored users: a change copies the tables, which must not pause the event loop."""
ENTRIES_MAX: Final = 1_000
"""Limit of the policy entries of one user, which a request may compare one by one."""
TEXT_CHARACTERS_MAX: Final = 255
"""Limit of names, passwords and resources. RocketMQ's names of topics and groups are shorter."""
SOURCES_MAX: Final = 64
"""Limit of the addresses and networks of one entry."""
INTERNAL_ERROR: Final = "An system error occurred, please try again later."
"""RocketMQ's text for a request that it cannot read."""

E = TypeVar("E", bound=StrEnum)


@final
class ChangeRefused(Exception):
    """A change is refused with this code and text; the tables stay as they are."""

    def __init__(self, text: str, code: ResponseCode = ResponseCode.NO_PERMISSION) -> None:
        super().__init__(text)
        self.text: Final = text
        self.code: Final = code


def create_user(tables: AccountTables, name: str, info: UserInfo, *, is_by_super: bool) -> AccountTables:
    """Create a user, of type Normal and enabled unless the request has another type or status."""
    kind = _find(UserType, info.user_type)
    if kind is UserType.SUPER and not is_by_super:
        _refuse("The super user can only be create by super user", ResponseCode.SYSTEM_ERROR)
    _check_username(name)
    if not (info.password or "").strip():
        _refuse("password can not be blank")
    _check_length(name, "username")
    _check_length(info.password or "", "password")
    if name in tables.users:
        _refuse("The user is existed")
    if len(tables.users) >= USERS_MAX:
        _refuse(f"there are {USERS_MAX} users, the limit of this broker: delete users that are not needed")
    status = _find(UserStatus, info.user_status) or UserStatus.ENABLE
    return tables.with_user(StoredUser(name, info.password or "", kind or UserType.NORMAL, status))


def update_user(tables: AccountTables, name: str, info: UserInfo, *, is_by_super: bool) -> AccountTables:
    """Change the password, the type and the status of a user, where the request has them."""
    kind = _find(UserType, info.user_type)
    if kind is UserType.SUPER and not is_by_super:
        _refuse("The super user can only be update by super user", ResponseCode.SYSTEM_ERROR)
    _check_username(name)
    old = tables.users.get(name)
    if old is None:
        _refuse("The user is not exist")
    if old.type is UserType.SUPER and not is_by_super:
        _refuse("The super user can only be update by super user")
    password = info.password if (info.password or "").strip() else None
    _check_length(password or "", "password")
    new = StoredUser(
        name,
        password or old.password,
        kind or old.type,
        _find(UserStatus, info.user_status) or old.status,
    )
    return tables if new == old else tables.with_user(new)


def delete_user(tables: AccountTables, name: str, *, is_by_super: bool) -> AccountTables:
    """Delete a user with all policies; nothing changes if there is no such user."""
    _check_username(name)
    old = tables.users.get(name)
    if old is None:
        return tables
    if old.type is UserType.SUPER and not is_by_super:
        _refuse("The super user can only be update by super user")
    return tables.without_user(name)


def put_acl(tables: AccountTables, subject: str, info: AclInfo) -> AccountTables:
    """Add the policies of a request to those of a user; both `createAcl` and `updateAcl` do that."""
    if not info.policies:
        _refuse("The body of acl is null", ResponseCode.SYSTEM_ERROR)
    name = subject_name(info.subject) or subject_name(subject)
    if name is None:
        _refuse(INTERNAL_ERROR, ResponseCode.SYSTEM_ERROR)
    policies = [
        (_find(PolicyType, policy.policy_type) or PolicyType.CUSTOM, [_read_entry(one) for one in policy.entries])
        for policy in info.policies
        if policy.entries
    ]
    if not policies:
        _refuse("The policies is empty.")
    if name not in tables.users:
        _refuse(f"The subject of {SUBJECT_PREFIX}{name[:TEXT_CHARACTERS_MAX]} is not exist.")
    entries = dict(tables.policies.get(name, {}))
    for kind, rules in policies:
        entries[kind] = _merge(entries.get(kind, ()), rules)
    if sum(map(len, entries.values())) > ENTRIES_MAX:
        _refuse(f"more than {ENTRIES_MAX} policy entries of one user: use prefixes such as Topic:orders-*")
    return tables if entries == tables.policies.get(name) else tables.with_entries(name, entries)


def delete_acl(tables: AccountTables, subject: str, policy_type: str | None, resource: str | None) -> AccountTables:
    """Delete the entry for a resource in the policy of one type, Custom by default; without a resource all policies."""
    name = subject_name(subject)
    if name is None:
        _refuse("The subject is null.")
    if name not in tables.users:
        _refuse("The subject is not exist.")
    entries = tables.policies.get(name)
    if entries is None:
        _refuse("The acl is not exist.")
    if not (resource or "").strip():
        return tables.with_entries(name, {})
    wanted = parse_resource(resource)
    if wanted is None:
        _refuse("The resource is null.")
    kind = _find(PolicyType, policy_type) or PolicyType.CUSTOM
    kept: Entries = {
        **entries,
        kind: tuple(entry for entry in entries.get(kind, ()) if entry.resource != wanted),
    }
    return tables if kept == entries else tables.with_entries(name, kept)


def subject_name(subject: str | None) -> str | None:
    """Return the user of a subject such as ``User:alice``; None for another kind of subject."""
    kind, separator, name = (subject or "").partition(":")
    return name if separator and kind.lower() == SUBJECT_PREFIX[:-1].lower() else None


def _read_entry(info: PolicyEntryInfo) -> PolicyEntry:
    """Check one rule as RocketMQ does, and in its order."""
    resource = parse_resource(info.resource)
    if resource is None:
        _refuse("The resource is null.")
    _check_length(info.resource or "", "resource")
    actions = tuple(action for name in info.actions if (action := _find(Action, name)) is not None)
    if not actions:
        _refuse("The actions is empty.")
    if Action.ANY in actions:
        _refuse("The actions can not be Any.")
    sources = tuple(info.source_ips or ())
    if any(not source.strip() for source in sources):
        _refuse("The source ip is empty.")
    if len(sources) > SOURCES_MAX:
        _refuse(f"more than {SOURCES_MAX} source ips in one entry: use networks such as 10.0.0.0/16")
    decision = _find(Decision, info.decision)
    try:
        entry = make_entry(resource, tuple(dict.fromkeys(actions)), decision or Decision.DENY, sources)
    except ValueError:
        _refuse("The source ip is invalid.")
    if decision is None:
        _refuse("The decision is null or illegal.")
    return entry


def _merge(old: Iterable[PolicyEntry], new: Iterable[PolicyEntry]) -> tuple[PolicyEntry, ...]:
    """Return old entries and new ones; a new entry replaces the old one for the same resource, in its place."""
    merged = {entry.resource: entry for entry in old}
    merged.update((entry.resource, entry) for entry in new)
    return tuple(merged.values())


def _find(kind: type[E], name: str | None) -> E | None:
    """Return the member with this name in any case; None for an unknown one."""
    return next((one for one in kind if one.value.lower() == (name or "").lower()), None)


def _check_username(name: str) -> None:
    if not name.strip():
        _refuse("username can not be blank")


def _check_length(text: str, what: str) -> None:
    if len(text) > TEXT_CHARACTERS_MAX:
        _refuse(f"the {what} has {len(text)} characters; at most {TEXT_CHARACTERS_MAX} are allowed")


def _refuse(text: str, code: ResponseCode = ResponseCode.NO_PERMISSION) -> NoReturn:
    raise ChangeRefused(text, code)
