"""Changes of users and policies: accepted, and refused with RocketMQ's codes and texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gantry_access.account_changes import (
    ENTRIES_MAX,
    TEXT_CHARACTERS_MAX,
    USERS_MAX,
    ChangeRefused,
    create_user,
    delete_acl,
    delete_user,
    put_acl,
    update_user,
)
from gantry_access.account_document import AccountDocument, describe_entries, read_tables, write_tables
from gantry_access.stored_accounts import AccountTables, StoredUser, UserStatus, UserType, build_accounts
from gantry_wire.commands.accounts import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo

RULE: dict[str, Any] = {"resource": "Topic:orders", "actions": ["Pub", "Sub"], "decision": "Allow"}


@pytest.fixture
def tables() -> AccountTables:
    users = {
        "root": StoredUser("root", "root-secret", UserType.SUPER),
        "alice": StoredUser("alice", "alice-secret"),
        "bob": StoredUser("bob", "bob-secret"),
    }
    return put_acl(AccountTables(users), "User:bob", acl(RULE))


def acl(*rules: dict[str, Any], kind: str | None = None, subject: str | None = None) -> AclInfo:
    entries = [PolicyEntryInfo(**rule) for rule in rules]
    return AclInfo(subject=subject, policies=[PolicyInfo(policy_type=kind, entries=entries)])


def rule(**changed: Any) -> dict[str, Any]:
    return {**RULE, **changed}


def listed(tables: AccountTables, name: str = "alice") -> list[tuple[str | None, str | None, list[str], str | None]]:
    return [
        (policy.policy_type, one.resource, one.actions, one.decision)
        for policy in describe_entries(tables.policies.get(name, {}))
        for one in policy.entries or ()
    ]


def new(tables: AccountTables, name: str = "new", *, is_by_super: bool = True, **info: Any) -> AccountTables:
    return create_user(tables, name, UserInfo(**{"password": "new-secret", **info}), is_by_super=is_by_super)


def change(tables: AccountTables, name: str = "alice", *, is_by_super: bool = True, **info: Any) -> AccountTables:
    return update_user(tables, name, UserInfo(**info), is_by_super=is_by_super)


def put(tables: AccountTables, **changed: Any) -> AccountTables:
    return put_acl(tables, "User:alice", acl(rule(**changed)))


REFUSED: list[tuple[str, int, str, Callable[[AccountTables], AccountTables]]] = [
    ("existing user", 16, "The user is existed", lambda t: new(t, "alice")),
    ("blank name", 16, "username can not be blank", lambda t: new(t, " ")),
    ("no password", 16, "password can not be blank", lambda t: new(t, password=None)),
    ("blank password", 16, "password can not be blank", lambda t: new(t, password=" ")),
    ("super by another", 1, "can only be create by super user", lambda t: new(t, user_type="super", is_by_super=False)),
    ("long name", 16, "at most 255", lambda t: new(t, "x" * (TEXT_CHARACTERS_MAX + 1))),
    ("long password", 16, "at most 255", lambda t: new(t, password="x" * (TEXT_CHARACTERS_MAX + 1))),
    ("update of an unknown user", 16, "The user is not exist", lambda t: change(t, "carol", password="x")),
    ("promotion by another", 1, "can only be update", lambda t: change(t, user_type="Super", is_by_super=False)),
    ("update of a super user", 16, "can only be update", lambda t: change(t, "root", password="x", is_by_super=False)),
    ("delete of a super user", 16, "can only be update", lambda t: delete_user(t, "root", is_by_super=False)),
    ("delete without a name", 16, "username can not be blank", lambda t: delete_user(t, "", is_by_super=True)),
    ("no policies", 1, "The body of acl is null", lambda t: put_acl(t, "User:alice", AclInfo())),
    ("empty policies", 16, "The policies is empty.", lambda t: put_acl(t, "User:alice", acl())),
    ("policies of an unknown user", 16, "User:carol is not exist.", lambda t: put_acl(t, "User:carol", acl(RULE))),
    ("another kind of subject", 1, "try again later", lambda t: put_acl(t, "Role:alice", acl(RULE))),
    ("unknown resource", 16, "The resource is null.", lambda t: put(t, resource="Nonsense:x")),
    ("no resource", 16, "The resource is null.", lambda t: put(t, resource=None)),
    ("unknown actions", 16, "The actions is empty.", lambda t: put(t, actions=["Fly"])),
    ("any action", 16, "The actions can not be Any.", lambda t: put(t, actions=["Any"])),
    ("blank source", 16, "The source ip is empty.", lambda t: put(t, source_ips=[" "])),
    ("host name", 16, "The source ip is invalid.", lambda t: put(t, source_ips=["host"])),
    ("long prefix", 16, "The source ip is invalid.", lambda t: put(t, source_ips=["10.0.0.0/33"])),
    ("netmask", 16, "The source ip is invalid.", lambda t: put(t, source_ips=["10.0.0.0/255.0.0.0"])),
    ("unknown decision", 16, "The decision is null or illegal.", lambda t: put(t, decision="Maybe")),
    ("many sources", 16, "more than 64", lambda t: put(t, source_ips=["10.0.0.1"] * 65)),
    ("delete without a subject", 16, "The subject is null.", lambda t: delete_acl(t, "", None, None)),
    ("delete of an unknown user", 16, "The subject is not exist.", lambda t: delete_acl(t, "User:carol", None, None)),
    ("delete of a wrong resource", 16, "The resource is null.", lambda t: delete_acl(t, "User:bob", None, "Tpoic:x")),
    ("delete of nothing", 16, "The acl is not exist.", lambda t: delete_acl(t, "User:alice", None, None)),
]  # fmt: skip


@pytest.mark.parametrize(("code", "text", "make"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_invalid_change_is_refused(
    tables: AccountTables, code: int, text: str, make: Callable[[AccountTables], AccountTables]
) -> None:
    """With RocketMQ's code and text; limits are ours."""
    with pytest.raises(ChangeRefused, match=text.replace(".", r"\.")) as caught:
        make(tables)
    assert caught.value.code == code


def test_created_user_is_normal_and_enabled_by_default(tables: AccountTables) -> None:
    """Types and statuses are read in any case; unknown ones count as absent."""
    assert new(tables).users["new"] == StoredUser("new", "new-secret")
    found = new(tables, user_type="SUPER", user_status="Disable")
    assert found.users["new"] == StoredUser("new", "new-secret", UserType.SUPER, UserStatus.DISABLE)
    assert new(tables, user_type="Boss", user_status="asleep").users["new"] == StoredUser("new", "new-secret")
    assert new(tables, is_by_super=False).users["new"].type is UserType.NORMAL


def test_update_changes_only_what_it_names(tables: AccountTables) -> None:
    """A blank password is not a change; an update that changes nothing returns the same tables."""
    assert change(tables, password="x").users["alice"] == StoredUser("alice", "x")
    assert change(tables, user_type="Super").users["alice"] == StoredUser("alice", "alice-secret", UserType.SUPER)
    assert change(tables, password=" ", user_type="Boss") is tables


def test_last_super_user_may_be_deleted(tables: AccountTables) -> None:
    """RocketMQ does not prevent it; the first user of the settings is created again at the next start."""
    assert not delete_user(tables, "root", is_by_super=True).has_super_user


def test_deleted_user_takes_the_policies_along(tables: AccountTables) -> None:
    """And deleting a user who does not exist changes nothing."""
    assert "bob" not in delete_user(tables, "bob", is_by_super=False).policies
    assert delete_user(tables, "carol", is_by_super=False) is tables


def test_entries_for_a_known_resource_are_replaced(tables: AccountTables) -> None:
    """createAcl and updateAcl both merge by resource, separately for each type."""
    once = put_acl(tables, "User:alice", acl(RULE, rule(resource="Group:*", actions=["Sub"])))
    twice = put_acl(once, "User:alice", acl(rule(actions=["pub", "Fly"], decision="deny")))
    more = put_acl(twice, "User:alice", acl(RULE, kind="Default"))
    assert listed(more) == [
        ("Custom", "Topic:orders", ["Pub"], "Deny"),
        ("Custom", "Group:*", ["Sub"], "Allow"),
        ("Default", "Topic:orders", ["Pub", "Sub"], "Allow"),
    ]
    assert put_acl(more, "User:alice", acl(RULE, kind="Default")) is more


def test_subject_in_the_body_wins(tables: AccountTables) -> None:
    """RocketMQ takes the header's only if the body has none."""
    assert listed(put_acl(tables, "User:bob", acl(RULE, subject="User:alice")))
    assert listed(put_acl(tables, "User:alice", acl(RULE)))


def test_policies_are_deleted_by_resource_and_type_or_all(tables: AccountTables) -> None:
    """Custom is the default type; a resource without an entry changes nothing."""
    full = put_acl(put_acl(tables, "User:alice", acl(RULE)), "User:alice", acl(RULE, kind="Default"))
    kinds = {kind for kind, *_ in listed(delete_acl(full, "User:alice", None, "Topic:orders"))}
    assert kinds == {"Default"}
    assert {kind for kind, *_ in listed(delete_acl(full, "User:alice", "default", "Topic:orders"))} == {"Custom"}
    assert listed(delete_acl(full, "User:alice", None, None)) == []
    assert delete_acl(full, "User:alice", None, "Topic:other") is full


def test_limits_of_users_and_entries_are_refused_with_a_remedy(tables: AccountTables) -> None:
    """A change copies the tables, and a request may compare every entry."""
    users = {f"user-{number}": StoredUser(f"user-{number}", "x") for number in range(USERS_MAX)}
    with pytest.raises(ChangeRefused, match="delete users"):
        new(AccountTables(users))
    many = [rule(resource=f"Topic:t{number}") for number in range(ENTRIES_MAX + 1)]
    assert len(listed(put_acl(tables, "User:alice", acl(*many[:ENTRIES_MAX])))) == ENTRIES_MAX
    with pytest.raises(ChangeRefused, match="prefixes"):
        put_acl(tables, "User:alice", acl(*many))


def test_document_holds_the_tables(tables: AccountTables) -> None:
    """What is stored and copied to slaves is what the broker had."""
    full = put_acl(tables, "User:alice", acl(rule(source_ips=["10.0.0.0/8"]), rule(resource="*", actions=["All"])))
    assert read_tables(write_tables(full)) == full


@pytest.mark.parametrize(
    "document",
    [
        AccountDocument(users=[UserInfo(username="a", user_type="Super", user_status="enable")]),
        AccountDocument(users=[UserInfo(username="a", password="secret-of-a", user_type="Boss", user_status="enable")]),
        AccountDocument(acls=[acl(RULE, kind="Custom", subject="carol")]),
    ],
    ids=["no password", "unknown type", "no user"],
)
def test_invalid_document_is_refused_without_secrets(document: AccountDocument) -> None:
    """Part of a document must not define the permissions."""
    with pytest.raises(ValueError) as caught:
        read_tables(document)
    assert "secret-of-a" not in str(caught.value)


def test_accounts_of_unchanged_users_are_used_again(tables: AccountTables) -> None:
    """Preparing a secret is expensive; those whose user or policies have changed are new."""
    before = build_accounts(tables, is_authorizing=True)
    changed = change(put_acl(tables, "User:bob", acl(rule(decision="Deny"))), "alice", user_status="disable")
    after = build_accounts(changed, is_authorizing=True, before=(tables, before))
    assert after.by_key["root"] is before.by_key["root"]
    assert after.by_key["bob"] is not before.by_key["bob"]
    assert set(after.disabled) == {"alice"} and "alice" not in after.by_key


def test_texts_of_users_contain_no_password(tables: AccountTables) -> None:
    """They go into logs and failure reports."""
    texts = f"{tables!r} {tables.users!r} {UserInfo(username='a', password='alice-secret')!r} {write_tables(tables)!r}"
    assert "secret" not in texts
