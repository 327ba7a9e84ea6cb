"""A broker with access control: the sidecar uses the account in its file, and the new one when the file changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from admin_scene import READ_TOKEN, broker_process, sidecar_process, wait_for, write_token_files

from gantry_access import Credentials
from gantry_testing.accounts import ADMIN, write_accounts


def write_credentials(path: Path, account: Credentials, secret: str | None = None) -> None:
    path.write_text(f"accessKey: {account.access_key}\nsecretKey: {secret or account.secret_key}\n")


@pytest.mark.verify
def test_account_is_replaced_without_a_restart(tmp_path: Path) -> None:
    """With the wrong secret the tables come from disk; after the file has the right one, they come from the broker."""
    conf = {"aclEnable": "true", "aclFile": str(write_accounts(tmp_path / "plain_acl.yml")), "haListenPort": "-1"}
    path = tmp_path / "account.yml"
    write_credentials(path, ADMIN, "another-secret")
    with broker_process(tmp_path / "store", **conf), sidecar_process(
        tmp_path / "store", "--broker-credentials", str(path)
    ) as sidecar:  # fmt: skip
        sidecar.wait_ready()
        wait_for(lambda: "has not answered" in str(sidecar.get("/v1/topics").json().get("reason")), "it is refused")
        assert sidecar.get("/v1/topics").json().get("source") != "broker"
        assert sidecar.get("/v1/status").json()["flush_mode"] is None

        write_credentials(path, ADMIN)
        wait_for(lambda: sidecar.get("/v1/topics").json().get("source") == "broker", "the right one is used")
        wait_for(lambda: sidecar.get("/v1/status").json()["flush_mode"] == "async", "its settings are known, too")

        assert ADMIN.secret_key not in sidecar.child.log and "another-secret" not in sidecar.child.log


def test_accounts_are_listed_without_secrets(tmp_path: Path) -> None:
    """Users with their type and their rules; no answer has the secret of an account."""
    conf = {"aclEnable": "true", "aclFile": str(write_accounts(tmp_path / "plain_acl.yml")), "haListenPort": "-1"}
    path = tmp_path / "account.yml"
    write_credentials(path, ADMIN)
    with broker_process(tmp_path / "store", **conf), sidecar_process(
        tmp_path / "store", "--broker-credentials", str(path), *write_token_files(tmp_path / "tokens")
    ) as sidecar:  # fmt: skip
        sidecar.wait_ready()
        assert sidecar.get("/v1/accounts").status_code == 401
        answer = sidecar.get("/v1/accounts", token=READ_TOKEN)

    found = answer.json()
    types = {one["name"]: one["type"] for one in found["accounts"]}
    assert (answer.status_code, found["is_access_controlled"]) == (200, True)
    assert types[ADMIN.access_key] == "Super" and len(types) > 1
    assert any(one["rules"] for one in found["accounts"])
    assert ADMIN.secret_key not in answer.text and "password" not in answer.text.lower()
