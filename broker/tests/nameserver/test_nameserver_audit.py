"""The name server's audit log has one line for each administrative write, with its outcome."""

import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gantry_nameserver import server as server_module
from gantry_nameserver.handlers import AUDITED, ROUTINE_CODES
from gantry_nameserver.server import NameServer
from gantry_nameserver.settings import NameServerSettings
from gantry_remoting.audit import LOGGER
from gantry_remoting.client import Channel
from gantry_testing.ports import free_ports
from gantry_wire.codes import RequestCode
from gantry_wire.command import Command

WRITES = (100, 102, 103, 104, 205, 216, 217, 318, 322, 327, 904)
"""Every code of the name server that changes state, including heartbeats."""


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(record.getMessage()) for record in caplog.records if record.name == LOGGER]


@pytest.fixture
async def channel(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Channel]:
    caplog.set_level(logging.INFO, logger=LOGGER)
    server = NameServer(NameServerSettings(bind_address="127.0.0.1", listen_port=0), tmp_path / "data")
    await server.start()
    channel = await Channel.connect(f"127.0.0.1:{server.port}")
    yield channel
    await channel.close()
    await server.close()


async def ask(channel: Channel, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> Command:
    return await channel.request(Command(code=code, ext=ext or {}, body=body), 30_000)


def test_every_write_is_audited_or_routine() -> None:
    """A new request code must be classified as one of the two."""
    assert {int(code) for code in AUDITED | ROUTINE_CODES} == set(WRITES)
    assert not AUDITED & ROUTINE_CODES


async def test_each_administrative_change_is_audited_once(channel: Channel, caplog: pytest.LogCaptureFixture) -> None:
    """Refused ones are audited, too: some of these requests lack required fields."""
    for code in sorted(AUDITED):
        caplog.clear()
        reply = await ask(channel, code, {"topic": "T", "brokerName": "a", "value": "do-not-tell"})

        [line] = lines(caplog)
        assert (line["server"], line["what"], line["code"]) == ("nameserver", RequestCode(code).name, code)
        assert line["outcome"] == reply.code
        assert line["on"]["brokerName"] == "a"
        assert "do-not-tell" not in json.dumps(line)


async def test_refused_changes_on_the_external_port_are_audited(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The port refuses every change; the attempt is visible, with its sender."""
    caplog.set_level(logging.INFO, logger=LOGGER)
    inside, outside = free_ports(2)
    settings = NameServerSettings(bind_address="127.0.0.1", listen_port=inside, external_listen_port=outside)
    server = NameServer(settings, tmp_path / "data")
    await server.start()
    channel = await Channel.connect(f"127.0.0.1:{outside}")
    for code in sorted(AUDITED):
        caplog.clear()
        reply = await ask(channel, code, {"topic": "T", "value": "do-not-tell"})

        [line] = lines(caplog)
        assert (line["what"], line["outcome"], reply.code) == (RequestCode(code).name, 16, 16)
        assert "external port" in line["reason"] and "do-not-tell" not in json.dumps(line)
    await channel.close()
    await server.close()


async def test_routine_requests_are_not_audited(channel: Channel, caplog: pytest.LogCaptureFixture) -> None:
    """Queries are not audited, either."""
    for code in (*ROUTINE_CODES, RequestCode.GET_BROKER_CLUSTER_INFO, RequestCode.GET_KV_CONFIG):
        await ask(channel, code)

    assert lines(caplog) == []


async def test_forbidden_settings_are_audited(channel: Channel, caplog: pytest.LogCaptureFixture) -> None:
    """The attempt to set a path is visible in the audit log."""
    await ask(channel, RequestCode.UPDATE_NAMESRV_CONFIG, body=b"kvConfigPath=/etc/passwd\n")

    [line] = lines(caplog)
    assert (line["outcome"], line["on"]) == (16, {"keys": ["kvConfigPath"]})


@pytest.mark.parametrize("line", ["kvConfigPath:hunter2", "kvConfigPath = hunter2"])
async def test_setting_values_are_not_audited(channel: Channel, caplog: pytest.LogCaptureFixture, line: str) -> None:
    """This holds for every syntax of Java properties; other text is not quoted, because it may be a secret."""
    await ask(channel, RequestCode.UPDATE_NAMESRV_CONFIG, body=line.encode())
    await ask(channel, RequestCode.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true\nhunter2")

    first, second = lines(caplog)
    assert first["on"] == {"keys": ["kvConfigPath"]}
    assert second["on"] == {"keys": ["orderMessageEnable", "not readable"]}
    assert "hunter2" not in json.dumps([first, second])


@pytest.mark.parametrize("is_wrapped", [True, False], ids=["wrapped", "not wrapped, the twin"])
async def test_audit_lines_have_a_single_source(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, is_wrapped: bool
) -> None:
    """Without the audit wrapper no handler writes an audit line."""
    caplog.set_level(logging.INFO, logger=LOGGER)
    if not is_wrapped:
        monkeypatch.setattr(server_module, "AUDITED", frozenset())
    server = NameServer(NameServerSettings(bind_address="127.0.0.1", listen_port=0), tmp_path / "data")
    await server.start()
    channel = await Channel.connect(f"127.0.0.1:{server.port}")
    await ask(channel, RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "a"})
    await channel.close()
    await server.close()

    assert len(lines(caplog)) == (1 if is_wrapped else 0)
