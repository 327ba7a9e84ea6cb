"""The proxy's settings, and its HTTP endpoint."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gantry_proxy.http_endpoint import HttpEndpoint
from gantry_proxy.main import main
from gantry_proxy.settings import ProxySettings, parse_settings, read_settings
from gantry_remoting.setting_kinds import SettingsError


def test_every_concern_of_the_file_is_read(tmp_path: Path) -> None:
    """Keys have the names of the fields in camel case."""
    file = tmp_path / "proxy.yaml"
    file.write_text(
        "nameServers: [ns1:9876, ns2:9876]\nlisten: {address: '[::]:8081', httpAddress: '', graceMs: 1}\n"
        "tls: {certificate: c, key: k}\naccess: {accountsFile: a}\nlimits: {clientsMax: 7, checksMessageTypes: false}\n"
    )

    settings = read_settings(file)

    assert settings.name_servers == ("ns1:9876", "ns2:9876")
    assert (settings.listen.address, settings.listen.http_address, settings.listen.grace_ms) == ("[::]:8081", "", 1)
    assert (settings.tls.certificate, settings.access.accounts_file) == ("c", "a")
    assert (settings.limits.clients_max, settings.limits.checks_message_types) == (7, False)


def test_empty_file_has_the_defaults() -> None:
    """No key is required in a settings file."""
    assert parse_settings(None) == ProxySettings()


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ([], "expected keys"),
        ({"listn": {}}, "unknown key 'listn'"),
        ({"listen": 5}, "listen: expected keys"),
        ({"listen": {"adress": "x"}}, "listen: unknown key 'adress'"),
        ({"listen": {"address": "8081"}}, "listen.address: '8081', expected host:port"),
        ({"listen": {"graceMs": "1"}}, "listen.graceMs: '1', expected a whole number"),
        ({"listen": {"graceMs": True}}, "listen.graceMs: True, expected a whole number"),
        ({"listen": {"graceMs": -1}}, "listen.graceMs: -1, expected 0 or more"),
        ({"nameServers": []}, "nameServers: no name server"),
        ({"nameServers": 5}, "nameServers: expected a list"),
        ({"tls": {"key": "k"}}, "tls.certificate and tls.key go together"),
        ({"tls": {"clientAuthority": "c"}}, "tls.clientAuthority has no effect without"),
        ({"tls": {"checksBrokerHostName": False}}, "tls.checksBrokerHostName=false has no effect without"),
        ({"access": {"signature": "v2"}}, "access.signature: 'v2', expected v1 or strict"),
        ({"access": {"signature": "strict"}}, "access.signature=strict has no effect without"),
        (
            {"access": {"accountsSource": "name servers"}},
            "access.accountsSource: 'name servers', expected file or brokers",
        ),
        ({"access": {"accountsSource": "brokers"}}, "access.accountsSource=brokers needs access.credentialsFile"),
        (
            {"access": {"accountsSource": "brokers", "credentialsFile": "c", "accountsFile": "a"}},
            "access.accountsSource=brokers and access.accountsFile=a contradict each other",
        ),
        ({"access": {"accountsCluster": "c"}}, "access.accountsCluster has no effect without"),
        ({"access": {"checksPolicies": False}}, "access.checksPolicies=false has no effect without"),
        ({"limits": {"pollMsMin": 30_000}}, "limits.pollMsMin=30000 is greater than"),
        ({"limits": {"invisibleMsMin": 10**9}}, "limits.invisibleMsMin is greater than"),
        ({"limits": {"requestBytesMax": 10}}, "limits.requestBytesMax=10 is smaller than"),
    ],
)
def test_invalid_settings_are_named(document: Any, words: str) -> None:
    """The error names the key, the value and what was expected."""
    with pytest.raises(SettingsError) as caught:
        parse_settings(document)

    assert words in str(caught.value)


def test_check_prints_settings_and_refuses_invalid_ones(tmp_path: Path) -> None:
    """Options override the file; an invalid one ends with exit code 2, in one line."""
    runner = CliRunner()

    good = runner.invoke(main, ["--check", "-n", "ns:1", "--listen", "127.0.0.1:9"])
    bad = runner.invoke(main, ["--check", "--listen", "nowhere"])
    missing = runner.invoke(main, ["--config", str(tmp_path / "none.yaml")])

    assert (good.exit_code, "('ns:1',)" in good.output, "127.0.0.1:9" in good.output) == (0, True, True)
    assert (bad.exit_code, "listen.address" in bad.output) == (2, True)
    assert (missing.exit_code, "cannot read" in missing.output) == (2, True)


# ------- HTTP


async def metrics_here() -> str:
    return "metrics here"


@pytest.mark.parametrize(
    ("method", "path", "code", "words"),
    [
        ("GET", "/livez", 200, "ok"),
        ("GET", "/readyz", 503, "stopping"),
        ("GET", "/metrics", 200, "metrics here"),
        ("GET", "/", 404, "/livez"),
        ("POST", "/livez", 405, "only GET"),
    ],
)
async def test_each_path_has_its_answer(method: str, path: str, code: int, words: str) -> None:
    """A replica that stops is alive, and not ready."""
    endpoint = HttpEndpoint("127.0.0.1:0", lambda: "the proxy is stopping", metrics_here)

    found = await endpoint.answer(method, path)

    assert (found[0], words in found[2]) == (code, True)


async def test_probes_are_answered_on_both_families() -> None:
    """In a pod the address is `[::]`, and a kubelet connects to the pod's address, of IPv4 or of IPv6."""
    endpoint = HttpEndpoint("[::]:0", lambda: "", metrics_here)
    await endpoint.start()
    try:
        for host in ("127.0.0.1", "::1"):
            reader, writer = await asyncio.open_connection(host, endpoint.port)
            writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
            writer.close()
            await writer.wait_closed()
    finally:
        await endpoint.close()


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"GET /readyz?x HTTP/1.1\r\nHost: x\r\n\r\n", b"200"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n", b"400"),
    ],
)
async def test_request_over_a_socket(sent: bytes, code: bytes) -> None:
    """A malformed or large request gets an answer, and its connection ends."""
    endpoint = HttpEndpoint("127.0.0.1:0", lambda: "", metrics_here)
    await endpoint.start()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
        writer.write(sent)
        answer = await reader.read()
        writer.close()
    finally:
        await endpoint.close()

    assert answer.startswith(b"HTTP/1.1 " + code)
