"""The name server's audit log: one line for each write of an administrator, whatever became of it."""

import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gantry_nameserver import server as server_module
from gantry_nameserver.handlers import AUDITED, EVERY_DAY
from gantry_nameserver.server import NameServer
from gantry_nameserver.settings import NameServerSettings
from gantry_remoting.audit import LOGGER
from gantry_remoting.client import Channel
from gantry_wire.codes import RequestCode
from gantry_wire.command import Command

WRITES = (100, 102, 103, 104, 205, 216, 217, 318, 322, 327, 904)
"""Every code of the name server that changes something, or says that a broker lives."""


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


def test_every_write_is_an_administrators_or_a_brokers() -> None:
    """Whoever adds a code has to say which of the two it is."""
    assert {int(code) for code in AUDITED | EVERY_DAY} == set(WRITES)
    assert not AUDITED & EVERY_DAY


async def test_each_write_leaves_exactly_one_line(channel: Channel, caplog: pytest.LogCaptureFixture) -> None:
    """Refused ones, too: these lack all that they need, but for a name."""
    for code in sorted(AUDITED):
        caplog.clear()
        reply = await ask(channel, code, {"topic": "T", "brokerName": "a", "value": "do-not-tell"})

        [line] = lines(caplog)
        assert (line["server"], line["what"], line["code"]) == ("nameserver", RequestCode(code).name, code)
        assert line["outcome"] == reply.code
        assert line["on"]["brokerName"] == "a"
        assert "do-not-tell" not in json.dumps(line)


async def test_what_brokers_do_all_day_leaves_none(channel: Channel, caplog: pytest.LogCaptureFixture) -> None:
    """Nor do questions."""
    for code in (*EVERY_DAY, RequestCode.GET_BROKER_CLUSTER_INFO, RequestCode.GET_KV_CONFIG):
        await ask(channel, code)

    assert lines(caplog) == []


async def test_forbidden_settings_are_named(channel: Channel, caplog: pytest.LogCaptureFixture) -> None:
    """The attempt to set a path is what an operator wants to read about."""
    await ask(channel, RequestCode.UPDATE_NAMESRV_CONFIG, body=b"kvConfigPath=/etc/passwd\n")

    [line] = lines(caplog)
    assert (line["outcome"], line["on"]) == (16, {"keys": ["kvConfigPath"]})


@pytest.mark.parametrize("line", ["kvConfigPath:hunter2", "kvConfigPath = hunter2"])
async def test_values_of_settings_are_not_in_the_audit_log(
    channel: Channel, caplog: pytest.LogCaptureFixture, line: str
) -> None:
    """However Java writes properties; what is no property is not quoted, for it may be a secret."""
    await ask(channel, RequestCode.UPDATE_NAMESRV_CONFIG, body=line.encode())
    await ask(channel, RequestCode.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true\nhunter2")

    first, second = lines(caplog)
    assert first["on"] == {"keys": ["kvConfigPath"]}
    assert second["on"] == {"keys": ["orderMessageEnable", "not readable"]}
    assert "hunter2" not in json.dumps([first, second])


@pytest.mark.parametrize("is_watched", [True, False], ids=["watched", "twin"])
async def test_the_one_place_is_what_writes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, is_watched: bool
) -> None:
    """Without it no handler would leave a line by itself."""
    caplog.set_level(logging.INFO, logger=LOGGER)
    if not is_watched:
        monkeypatch.setattr(server_module, "AUDITED", frozenset())
    server = NameServer(NameServerSettings(bind_address="127.0.0.1", listen_port=0), tmp_path / "data")
    await server.start()
    channel = await Channel.connect(f"127.0.0.1:{server.port}")
    await ask(channel, RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "a"})
    await channel.close()
    await server.close()

    assert len(lines(caplog)) == (1 if is_watched else 0)
