"""Codes 3001 to 3010: accounts are answered without their secrets, and changed only in their file."""

from __future__ import annotations

from pathlib import Path

import pytest

from gantry_broker.server.admin.account_handlers import ACCOUNT_CHANGES
from gantry_testing.accounts import ADMIN, ORDERS, guarded_broker, signed_dialogue
from gantry_testing.local import dialogue, running_broker, wait_until
from gantry_wire import RequestCode
from gantry_wire.fastjson import dumps

MORE_ACCOUNTS = """\
accounts:
  - accessKey: admin-key
    secretKey: admin-secret
    admin: true
  - accessKey: partner-key
    secretKey: partner-secret
    defaultTopicPerm: SUB
    topicPerms:
      - Secret=DENY
      - Shared=PUB|SUB
"""


async def test_users_are_listed_without_their_secrets(tmp_path: Path) -> None:
    """Accounts are listed with their type, optionally by a part of the name."""
    async with guarded_broker(tmp_path) as broker, signed_dialogue(broker, ADMIN) as client:
        users = await client.ask_json(3005)
        assert {user["username"]: user["userType"] for user in users} == {
            "orders-key": "Normal",
            "billing-key": "Normal",
            "admin-key": "Super",
        }
        assert "password" not in users[0]
        assert b"secret" not in (await client.ask(3005)).body
        assert [user["username"] for user in await client.ask_json(3005, {"filter": "ord"})] == ["orders-key"]

        billing = await client.ask_json(3004, {"username": "billing-key"})
        assert billing == {"username": "billing-key", "userType": "Normal", "userStatus": "enable"}
        missing = await client.ask(3004, {"username": "unknown-key"})
        assert (missing.code, missing.body) == (0, b"")
        assert (await client.ask(3004, {"username": " "})).code == 29


async def test_permissions_are_answered_as_policies(tmp_path: Path) -> None:
    """Those by name are Custom, defaults that allow something Default; an administrator needs none."""
    async with guarded_broker(tmp_path) as broker, signed_dialogue(broker, ADMIN) as client:
        found = await client.ask_json(3009, {"subject": "User:orders-key"})
        assert found == {
            "subject": "User:orders-key",
            "policies": [
                {
                    "policyType": "Custom",
                    "entries": [
                        {"actions": ["Pub", "Sub"], "decision": "Allow", "resource": "Topic:TopicTest"},
                        {"actions": ["Sub"], "decision": "Allow", "resource": "Group:GroupTest"},
                    ],
                },
            ],
        }
        admin, missing = [await client.ask(3009, {"subject": f"User:{name}-key"}) for name in ("admin", "unknown")]
        assert [(one.code, one.body) for one in (admin, missing)] == [(0, b""), (16, b"")]
        assert len(await client.ask_json(3010)) == 2
        listed = await client.ask_json(3010, {"resourceFilter": "Billing"})
        assert [one["subject"] for one in listed] == ["User:billing-key"]
        resources = [entry["resource"] for policy in listed[0]["policies"] for entry in policy["entries"]]
        assert resources == ["Topic:Billing", "Group:BillingGroup"]


async def test_present_content_of_the_account_file_is_answered(tmp_path: Path) -> None:
    """The answer lists the accounts with which the broker checks signatures, also after the file has changed."""
    async with guarded_broker(tmp_path) as broker, signed_dialogue(broker, ADMIN) as client:
        (tmp_path / "plain_acl.yml").write_text(MORE_ACCOUNTS)
        guard = broker.guard
        assert guard is not None
        await wait_until(lambda: "partner-key" in guard.source.accounts.by_key)
        assert {user["username"] for user in await client.ask_json(3005)} == {"admin-key", "partner-key"}
        found = await client.ask_json(3009, {"subject": "User:partner-key"})
        entries = [(entry["resource"], entry["decision"]) for one in found["policies"] for entry in one["entries"]]
        assert entries == [
            ("Topic:Secret", "Deny"), ("Topic:Shared", "Allow"), ("Topic:*", "Allow"),
        ]  # fmt: skip


@pytest.mark.parametrize("code", ACCOUNT_CHANGES, ids=lambda code: code.name)
async def test_changes_of_accounts_are_refused(tmp_path: Path, code: RequestCode) -> None:
    """16, with the name of the file; it is as it was."""
    async with guarded_broker(tmp_path) as broker, signed_dialogue(broker, ADMIN) as client:
        before = (tmp_path / "plain_acl.yml").read_bytes()
        body = dumps({"username": "new-key", "password": "new-secret"})
        reply = await client.ask(code, {"username": "new-key", "subject": "User:orders-key"}, body)
        assert (reply.code, str(tmp_path / "plain_acl.yml") in (reply.remark or "")) == (16, True)
        assert (tmp_path / "plain_acl.yml").read_bytes() == before


async def test_only_an_admin_may_list_accounts(tmp_path: Path) -> None:
    """Only administrators may list accounts; without access control the answer names the settings."""
    async with guarded_broker(tmp_path) as broker, signed_dialogue(broker, ORDERS) as client:
        for code in range(3001, 3011):
            reply = await client.ask(code, {"username": "orders-key", "subject": "User:orders-key"})
            assert (reply.code, "admin" in (reply.remark or "")) == (16, True)
    async with running_broker(tmp_path / "open") as broker, dialogue(broker) as client:
        for code in range(3001, 3011):
            reply = await client.ask(code, {"username": "orders-key", "subject": "User:orders-key"})
            assert (reply.code in (1, 16), "aclEnable" in (reply.remark or "")) == (True, True)
