"""Codes 3001 to 3010 of a broker that stores users and policies: changes take effect at once, and survive a start."""

from __future__ import annotations

import json
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gantry_access import Credentials
from gantry_broker.app import Broker
from gantry_broker.errors import ConfigCorrupt
from gantry_broker.ports.reading import ReadingDisk
from gantry_broker.ports.real_reading import RealReadingDisk
from gantry_broker.store.inspect import config_tables
from gantry_broker.store.inspect.config_tables import read_config_tables
from gantry_store_files.sealed import read_small
from gantry_testing.accounts import SUPER, signed_dialogue, stored_broker
from gantry_testing.local import TOPIC, Dialogue, dialogue
from gantry_wire import Command
from gantry_wire.fastjson import dumps

ALICE = Credentials("alice", "alice-secret")
USER_ALICE = {"username": "alice", "password": "alice-secret"}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker that stores users and policies."""
    async with stored_broker(tmp_path) as one:
        yield one


@pytest.fixture
async def root(broker: Broker) -> AsyncIterator[Dialogue]:
    async with signed_dialogue(broker, SUPER) as one:
        yield one


async def create_user(client: Dialogue, name: str = "alice", **info: Any) -> Command:
    return await client.ask(3001, {"username": name}, dumps({"username": name, "password": f"{name}-secret", **info}))


async def update_user(client: Dialogue, name: str = "alice", **info: Any) -> Command:
    return await client.ask(3002, {"username": name}, dumps({"username": name, **info}))


async def put_acl(client: Dialogue, *entries: dict[str, Any], user: str = "alice", code: int = 3006) -> Command:
    subject = f"User:{user}"
    body = {"subject": subject, "policies": [{"entries": list(entries)}]}
    return await client.ask(code, {"subject": subject}, dumps(body))


def allow(resource: str, *actions: str, **more: Any) -> dict[str, Any]:
    return {"resource": resource, "actions": list(actions), "decision": "Allow", **more}


async def send_as(broker: Broker, account: Credentials, topic: str = TOPIC) -> int:
    async with signed_dialogue(broker, account) as client:
        return int((await client.send(topic=topic)).code)


async def test_user_may_send_as_soon_as_a_policy_allows_it(broker: Broker, root: Dialogue) -> None:
    """Each answered change applies to the next request, also on an open connection."""
    await root.send_ok()
    assert await send_as(broker, ALICE) == 16
    assert (await create_user(root)).code == 0
    async with signed_dialogue(broker, ALICE) as alice:
        assert (await alice.send()).code == 16
        assert (await put_acl(root, allow(f"Topic:{TOPIC}", "Pub"))).code == 0
        assert (await alice.send()).code == 0
        assert (await put_acl(root, {**allow(f"Topic:{TOPIC}", "Pub"), "decision": "Deny"}, code=3007)).code == 0
        denied = await alice.send()
        assert (denied.code, (denied.remark or "").endswith("the decision is deny.")) == (16, True)
        assert (await root.ask(3008, {"subject": "User:alice", "resource": f"Topic:{TOPIC}"})).code == 0
        assert (await alice.send()).code == 16


async def test_broker_without_authorization_lets_every_user_send(tmp_path: Path) -> None:
    """The twin: with authorizationEnabled=false the same user needs no policy, but a good signature."""
    async with stored_broker(tmp_path, authorizationEnabled="false") as broker:
        async with signed_dialogue(broker, SUPER) as root:
            assert (await create_user(root)).code == 0
        assert await send_as(broker, ALICE) == 0
        assert await send_as(broker, Credentials("alice", "another")) == 16


async def test_changed_password_and_status_apply_at_once(broker: Broker, root: Dialogue) -> None:
    """An old password and a disabled user are refused; only who knows the password learns the second."""
    await create_user(root, userType="Super")
    assert await send_as(broker, ALICE) == 0
    await root.ask(3002, {"username": "alice"}, dumps({"password": "changed-secret"}))
    assert await send_as(broker, ALICE) == 16
    changed = Credentials("alice", "changed-secret")
    assert await send_as(broker, changed) == 0
    await root.ask(3002, {"username": "alice"}, dumps({"userStatus": "disable"}))
    async with signed_dialogue(broker, changed) as client:
        assert (await client.send()).remark == "User:alice is disabled."
    async with signed_dialogue(broker, ALICE) as client:
        assert "unknown accessKey" in ((await client.send()).remark or "")


async def test_deleted_user_is_refused_and_loses_all_policies(broker: Broker, root: Dialogue) -> None:
    """A user who is created again has no policies; deleting a user who does not exist succeeds."""
    await create_user(root)
    await put_acl(root, allow("*", "All"))
    assert (await root.ask(3003, {"username": "alice"})).code == 0
    assert await send_as(broker, ALICE) == 16
    await create_user(root)
    assert (await root.ask(3009, {"subject": "User:alice"})).body == b""
    assert (await root.ask(3003, {"username": "unknown"})).code == 0


@pytest.mark.parametrize("kind", ["Super", "Normal"])
async def test_only_a_super_user_reads_a_password(broker: Broker, root: Dialogue, kind: str) -> None:
    """A proxy needs the password to check signatures. Who may only list users, as RocketMQ has it, gets none."""
    await create_user(root, userType=kind)
    await create_user(root, "bob")
    await put_acl(root, allow("Cluster:*", "All"))
    expected = {"username": "bob", "userType": "Normal", "userStatus": "enable"}
    async with signed_dialogue(broker, ALICE) as alice:
        found = await alice.ask_json(3004, {"username": "bob"})
        missing = await alice.ask(3004, {"username": "unknown"})
        listed = await alice.ask(3005)

    assert found == ({**expected, "password": "bob-secret"} if kind == "Super" else expected)
    assert (missing.code, missing.body, b"secret" in listed.body) == (0, b"", False)


async def test_former_super_user_reads_no_password(broker: Broker, root: Dialogue) -> None:
    """The type counts as it is at the moment of the request, also on an open connection."""
    await create_user(root, userType="Super")
    async with signed_dialogue(broker, ALICE) as alice:
        before = await alice.ask_json(3004, {"username": "root"})
        await root.ask(3002, {"username": "alice"}, dumps({"userType": "Normal"}))
        await put_acl(root, allow("Cluster:*", "Get"))
        after = await alice.ask_json(3004, {"username": "root"})

    assert (before["password"], "password" in after) == (SUPER.secret_key, False)


async def test_users_and_policies_are_listed_without_passwords(broker: Broker, root: Dialogue) -> None:
    """The lists have RocketMQ's names, in the order of the users' names."""
    await create_user(root, "bob", userType="Super")
    await create_user(root)
    await put_acl(root, allow("Topic:orders*", "Pub", "Sub", sourceIps=["10.0.0.0/8"]), allow("Group:*", "Sub"))
    reply = await root.ask(3005)
    assert [user["username"] for user in json.loads(reply.body)] == ["alice", "bob", "root"]
    assert b"secret" not in reply.body
    assert await root.ask_json(3010, {"resourceFilter": "orders"}) == [{
        "subject": "User:alice",
        "policies": [{"policyType": "Custom", "entries": [{
            "resource": "Topic:orders*", "actions": ["Pub", "Sub"], "sourceIps": ["10.0.0.0/8"], "decision": "Allow",
        }]}],
    }]  # fmt: skip


async def test_changes_survive_a_start_in_a_file_of_the_owner(tmp_path: Path) -> None:
    """The file has mode 0600, also where the group may read the store; its passwords appear nowhere else."""
    async with stored_broker(tmp_path, fileAccess="GROUP") as broker, signed_dialogue(broker, SUPER) as root:
        await create_user(root)
        await put_acl(root, allow(f"Topic:{TOPIC}", "Pub"))
    files = [
        path for path in (tmp_path / "store").rglob("*") if path.is_file() and b"alice-secret" in path.read_bytes()
    ]
    assert sorted(path.name for path in files) == ["accounts.json", "accounts.json.bak"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    async with stored_broker(tmp_path) as broker:
        assert await send_as(broker, ALICE) == 0


async def test_first_user_is_created_only_without_a_super_user(tmp_path: Path) -> None:
    """A first user that was deleted does not return, until no enabled Super user is left."""
    async with stored_broker(tmp_path) as broker:
        async with signed_dialogue(broker, SUPER) as root:
            await create_user(root, userType="Super")
        async with signed_dialogue(broker, ALICE) as alice:
            assert (await alice.ask(3003, {"username": "root"})).code == 0
    async with stored_broker(tmp_path) as broker:
        assert await send_as(broker, SUPER) == 16
        async with signed_dialogue(broker, ALICE) as alice:
            assert (await alice.ask(3003, {"username": "alice"})).code == 0, "RocketMQ lets the last one go, too"
    async with stored_broker(tmp_path) as broker:
        assert await send_as(broker, SUPER) == 0


async def test_damaged_file_is_replaced_by_its_copy_or_stops_the_start(tmp_path: Path) -> None:
    """A start never continues with part of the users, or without them."""
    async with stored_broker(tmp_path) as broker, signed_dialogue(broker, SUPER) as root:
        await create_user(root, userType="Super")
    config = tmp_path / "store" / "config"
    (config / "accounts.json").write_bytes(b'{"users":[{"username":"ali')
    async with stored_broker(tmp_path) as broker:
        assert await send_as(broker, ALICE) == 0
    for name in ("accounts.json", "accounts.json.bak"):
        (config / name).write_bytes(b'{"users":[{"username":"alice"}],"acls":[]}')
    with pytest.raises(ConfigCorrupt) as caught:
        async with stored_broker(tmp_path):
            pass
    assert "accounts.json" in str(caught.value) and "secret" not in str(caught.value)


async def test_only_a_super_user_changes_super_users(broker: Broker, root: Dialogue) -> None:
    """Update on the cluster permits changes of other users; the codes are RocketMQ's."""
    await create_user(root)
    async with signed_dialogue(broker, ALICE) as alice:
        assert (await create_user(alice, "carol")).code == 16
        await put_acl(root, allow("Cluster:*", "Get", "Update"))
        assert (await create_user(alice, "carol")).code == 0
        assert (await create_user(alice, "dave", userType="Super")).code == 1
        up = dumps({"userType": "Super"})
        assert [(await alice.ask(3002, {"username": name}, up)).code for name in ("alice", "root")] == [1, 1]
        off = dumps({"userStatus": "disable"})
        assert (await alice.ask(3002, {"username": "root"}, off)).code == 16
        assert (await alice.ask(3003, {"username": "root"})).code == 16
        assert (await alice.ask(3002, {"username": "carol"}, off)).code == 0


async def test_changes_leave_audit_lines_without_secrets(
    broker: Broker, root: Dialogue, caplog: pytest.LogCaptureFixture
) -> None:
    """A line names the requester, the user, what changed, and the outcome; refused changes have one, too."""
    with caplog.at_level("INFO", logger="gantry.audit"):
        await create_user(root, userType="Super")
        await put_acl(root, allow("Topic:orders", "Pub"))
        await create_user(root)
    lines = [json.loads(record.getMessage()) for record in caplog.records if record.name == "gantry.audit"]
    assert [(one["account"], one["what"], one["outcome"]) for one in lines] == [
        ("root", "AUTH_CREATE_USER", 0), ("root", "AUTH_CREATE_ACL", 0), ("root", "AUTH_CREATE_USER", 16),
    ]  # fmt: skip
    assert lines[0]["on"] == {"username": "alice", "userType": "Super"}
    assert lines[1]["on"] == {"subject": "User:alice", "resources": ["Topic:orders"]}
    assert "secret" not in caplog.text


async def test_settings_are_returned_without_the_first_password(broker: Broker, root: Dialogue) -> None:
    """`getBrokerConfig` and the settings' repr have the name of the first user only."""
    reply = await root.ask(26)
    assert b'initAuthenticationUser={"username": "root"}' in reply.body and b"root-secret" not in reply.body
    assert "root-secret" not in repr(broker.settings)


async def test_unsigned_request_is_refused(broker: Broker) -> None:
    """A broker that stores users refuses a request without a user."""
    async with dialogue(broker) as client:
        assert (await client.send()).code == 16
        assert (await client.ask(3005)).code == 16


async def test_store_tools_of_another_user_leave_out_the_file_of_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no damage that a reader of the group may not read it; the broker's user sees the number of users."""
    async with stored_broker(tmp_path, fileAccess="GROUP") as broker, signed_dialogue(broker, SUPER) as root:
        await create_user(root)
    disk = RealReadingDisk()
    found = {table.name: table for table in read_config_tables(disk, str(tmp_path / "store"))}
    assert (found["accounts"].entries, found["accounts"].is_needed) == (2, True)

    def refuse(disk: ReadingDisk, path: str) -> bytes | None:
        if "accounts" in path:
            raise PermissionError(13, "Permission denied", path)
        return read_small(disk, path)

    monkeypatch.setattr(config_tables, "read_small", refuse)
    assert "accounts" not in {table.name for table in read_config_tables(disk, str(tmp_path / "store"))}
