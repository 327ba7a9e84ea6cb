"""Audit lines name the authenticated account of a request, denied requests included, or no account."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from gantry_access import Credentials, SignatureKind, signer
from gantry_nameserver.server import NameServer
from gantry_nameserver.settings import NameServerSettings
from gantry_remoting.audit import LOGGER
from gantry_remoting.client import Channel
from gantry_testing.accounts import ADMIN, ORDERS, guarded_broker, signed_dialogue, write_accounts
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.fastjson import dumps

IMPOSTOR = Credentials("admin-key", "not-the-secret")
UNKNOWN = Credentials("unknown-key", "some-secret")
EACH_ACCOUNT = pytest.mark.parametrize(
    ("credentials", "account", "is_done"),
    [
        (ADMIN, "admin-key", True),
        (ORDERS, "orders-key", False),
        (None, None, False),
        (IMPOSTOR, None, False),
        (UNKNOWN, None, False),
    ],
    ids=["administrator", "denied account", "unsigned", "wrong secret", "unknown account"],
)
KIND = pytest.mark.parametrize("kind", list(SignatureKind))


@pytest.fixture(autouse=True)
def audit_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger=LOGGER)


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(record.getMessage()) for record in caplog.records if record.name == LOGGER]


@KIND
@EACH_ACCOUNT
async def test_broker_audit_line_names_authenticated_account(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    credentials: Credentials | None,
    account: str | None,
    is_done: bool,
    kind: SignatureKind,
) -> None:
    """An access key without a valid signature is not named, and the line contains no secret."""
    async with guarded_broker(tmp_path) as broker, signed_dialogue(broker, credentials, kind) as client:
        reply = await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=dumps({"groupName": "G"}))

    [line] = lines(caplog)
    assert line["account"] == account
    assert line["outcome"] == reply.code == (0 if is_done else ResponseCode.NO_PERMISSION)
    assert line["on"] == {"groupName": "G"}
    assert "secret" not in json.dumps(line).replace("secretKey", "")


@KIND
@EACH_ACCOUNT
async def test_name_server_audit_line_names_authenticated_account(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    credentials: Credentials | None,
    account: str | None,
    is_done: bool,
    kind: SignatureKind,
) -> None:
    """The audit lines of a name server follow the same rule."""
    file = write_accounts(tmp_path / "plain_acl.yml")
    settings = NameServerSettings(bind_address="127.0.0.1", listen_port=0, acl_enable=True, acl_file=str(file))
    server = NameServer(settings, tmp_path / "ns")
    await server.start()
    channel = await Channel.connect(f"127.0.0.1:{server.port}", sign=signer(credentials, kind))
    ext = {"namespace": "N", "key": "k", "value": "do-not-tell"}
    reply = await channel.request(Command(code=RequestCode.PUT_KV_CONFIG, ext=ext), 30_000)
    await channel.close()
    await server.close()

    [line] = lines(caplog)
    assert line["account"] == account
    assert line["outcome"] == reply.code == (0 if is_done else ResponseCode.NO_PERMISSION)
    assert "do-not-tell" not in json.dumps(line)


@EACH_ACCOUNT
async def test_broker_without_role_audits_the_present_request(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    credentials: Credentials | None,
    account: str | None,
    is_done: bool,
) -> None:
    """A request for masters only is refused before permissions are checked; the line still names its account."""
    conf: dict[str, Any] = {"roleAtStart": "UNASSIGNED", "brokerId": "1"}
    async with (
        guarded_broker(tmp_path, **conf) as broker,
        signed_dialogue(broker, ADMIN) as before,
        signed_dialogue(broker, credentials) as client,
    ):
        assert (await before.ask(RequestCode.GET_BROKER_CONFIG)).code == 0
        reply = await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})

    [line] = lines(caplog)
    assert line["outcome"] == reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert line["account"] == account
    assert is_done == (account == "admin-key")


async def test_oneway_request_is_audited(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A oneway request gets no reply; its audit line is written, also if it is denied."""
    async with guarded_broker(tmp_path) as broker, signed_dialogue(broker, ORDERS) as client:
        client.send_oneway(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        assert (await client.ask(RequestCode.GET_BROKER_CONFIG)).code == ResponseCode.NO_PERMISSION

    assert [(line["account"], line["result"]) for line in lines(caplog)] == [("orders-key", "NO_PERMISSION")]
