"""The audit log has one line for each administrative change of a broker, whether it succeeded or failed."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gantry_broker.control.server import ControlServer
from gantry_broker.server import service
from gantry_broker.server.core.gate import CHANGES
from gantry_broker.server.service import AUDITED, CLIENT_CHANGES
from gantry_remoting.audit import FIELDS, LOGGER, describe_target, write_audit_line
from gantry_remoting.logs import set_up_logs
from gantry_status.order_client import OrderClient
from gantry_status.orders import Fence, Lease, StatusRequest
from gantry_testing.fake_group import FakeGroup
from gantry_testing.local import dialogue, running_broker, wait_until
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.fastjson import dumps

KEYS = {"server", "peer", "account", "what", "code", "on", "outcome", "result", "reason"}


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(record.getMessage()) for record in caplog.records if record.name == LOGGER]


@pytest.fixture(autouse=True)
def audit_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger=LOGGER)


def test_only_changes_are_excepted_from_the_audit() -> None:
    """The exceptions are changes that clients send in normal operation, and that only a master accepts."""
    assert CLIENT_CHANGES <= CHANGES
    assert not AUDITED & CLIENT_CHANGES
    assert RequestCode.UPDATE_BROKER_CONFIG in AUDITED


@pytest.mark.parametrize("is_master", [True, False], ids=["master", "no role"])
async def test_each_administrative_change_leaves_one_audit_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_master: bool
) -> None:
    """Successful, invalid, unknown or refused: the line has the client, the request and the code of the answer."""
    conf = {} if is_master else {"roleAtStart": "UNASSIGNED", "brokerId": "1"}
    async with running_broker(tmp_path, disk=None, clock=None, **conf) as broker, dialogue(broker) as client:
        for code in sorted(AUDITED):
            caplog.clear()
            reply = await client.ask(code, {"topic": "T", "secretKey": "do-not-tell"})

            [line] = lines(caplog)
            assert line.keys() == KEYS
            assert (line["server"], line["what"], line["code"]) == ("broker", RequestCode(code).name, code)
            assert (line["outcome"], line["reason"]) == (reply.code, reply.remark)
            assert line["peer"].startswith("127.0.0.1:")
            assert line["on"]["topic"] == "T"
            assert "do-not-tell" not in json.dumps(line)


async def test_client_requests_leave_no_audit_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Sends, pulls, heartbeats, commits and their like are no administrator's writes."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        await client.send_ok()
        await client.read()
        await client.heartbeat("c1")
        await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {"consumerGroup": "G"})
        for code in CLIENT_CHANGES:
            await client.ask(code)

    assert lines(caplog) == []


@pytest.mark.parametrize("is_audited", [True, False], ids=["audited", "not audited, the twin"])
async def test_audit_lines_come_from_a_single_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, is_audited: bool
) -> None:
    """The twin: if no code is listed as audited, no handler leaves a line by itself."""
    if not is_audited:
        monkeypatch.setattr(service, "AUDITED", frozenset())
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})

    assert len(lines(caplog)) == (1 if is_audited else 0)


async def test_oneway_change_leaves_an_audit_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A one-way change is not answered, but audited."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        client.send_oneway(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        await client.ask(RequestCode.GET_BROKER_CONFIG)
        await wait_until(lambda: bool(lines(caplog)))

    assert [line["what"] for line in lines(caplog)] == ["DELETE_TOPIC_IN_BROKER"]


async def test_audit_line_has_keys_of_settings_but_no_values(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A value may be a secret that was sent by mistake."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        reply = await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"maxBatchMessages=5\npassword=hunter2\n")

    [line] = lines(caplog)
    assert line["on"] == {"keys": ["maxBatchMessages", "password"]}
    assert (line["outcome"], line["result"]) == (ResponseCode.NO_PERMISSION, "NO_PERMISSION")
    assert "hunter2" not in json.dumps(line) + (reply.remark or "")


BODIES = {
    "groups": (dumps({"groupConfigList": [{"groupName": "a"}, {"groupName": "b"}]}), {"groupConfigList": ["a", "b"]}),
    "group": (dumps({"groupName": "a", "retryMaxTimes": 3}), {"groupName": "a"}),
    "topics": (dumps({"topicConfigList": [{"topicName": "T"}, 7]}), {"topicConfigList": ["T"]}),
    "broken": (b"{oh", {"body": "not readable"}),
    "no object": (b"[1]", {}),
    "no text": (b"{\xff\xfe", {"body": "not readable"}),
    "deep": (b"{" * 100_000, {"body": "not readable"}),
    "long": (dumps({"groupName": "x" * 1000}), {"groupName": "x" * 200}),
}


@pytest.mark.parametrize(("body", "about"), BODIES.values(), ids=BODIES.keys())
def test_audit_line_names_the_target_from_any_body(body: bytes, about: dict[str, Any]) -> None:
    """The target is read from the body; an unreadable body is reported as such."""
    command = Command(code=RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=body)

    assert describe_target(command) == about


def test_name_with_a_line_break_leaves_one_audit_line(caplog: pytest.LogCaptureFixture) -> None:
    """A header's line breaks stay inside of the JSON, and its length is bounded."""
    topic = "a\n2025 INFO gantry.audit {}" + "x" * 999
    command = Command(code=RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": topic})

    target = describe_target(command)
    write_audit_line(
        "broker", peer="p", account=None, what="DELETE_TOPIC_IN_BROKER", code=215, on=target, outcome=1, reason=topic
    )

    [record] = [record for record in caplog.records if record.name == LOGGER]
    assert "\n" not in record.getMessage()
    assert len(json.dumps(target)) < 300
    assert "value" not in FIELDS


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    handlers, level, audit = root.handlers[:], root.level, logging.getLogger(LOGGER).level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger(LOGGER).setLevel(audit)


def test_audit_log_ignores_the_log_level(root_logger: logging.Logger) -> None:
    """A broker that logs only errors still writes audit lines."""
    logging.getLogger(LOGGER).setLevel(logging.NOTSET)

    set_up_logs("error")

    assert logging.getLogger(LOGGER).isEnabledFor(logging.INFO)
    assert not logging.getLogger("gantry_broker.app").isEnabledFor(logging.INFO)


async def test_control_socket_orders_leave_an_audit_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The line has the process and the user of the order; queries and lease renewals leave none."""
    members = FakeGroup([1, 2], acks_needed=1)
    members.begin(1)
    server = ControlServer(str(tmp_path / "control.sock"), members.members[2])
    await server.start()
    try:
        async with OrderClient(server.path, answer_timeout_s=60) as client:
            await client.call(StatusRequest())
            await client.call(Lease(renewed_ms=1, duration_ms=2))
            await client.call(Fence(epoch=9))
    finally:
        await server.close()

    [line] = lines(caplog)
    assert (line["server"], line["what"], line["on"]) == ("control", "fence", {"epoch": 9})
    assert line["peer"].startswith("pid=")
