"""The TCP port of the archive server: brokers of other machines are served only with the secret, over TLS."""

from __future__ import annotations

import asyncio
import functools
import io
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
import trustme
from spark_kit.toy_archive import archive_log
from spark_kit.toy_log import ToyLog

from gantry_broker.archive_settings import ArchiveSettings
from gantry_broker.server.archive import connection as broker_side
from gantry_broker.server.archive.connection import ArchiveConnection, ArchiveUnavailable
from gantry_pipelines.archive.serving import broker_port
from gantry_pipelines.archive.serving.broker_port import PortParameters
from gantry_pipelines.archive.serving.serve_job import ServeJob, ServeSpec, serve
from gantry_pipelines.archive.serving.server import ArchiveServer, ServerParameters
from gantry_pipelines.archive.storage import Folder
from gantry_pipelines.config import config_of
from gantry_pipelines.errors import ConfigError
from gantry_pipelines.reporting import Output, OutputFormat, Reporter
from gantry_remoting import Channel, ClientTlsSettings, RemotingError
from gantry_testing.certificates import Party
from gantry_testing.local import running_broker, wait_until
from gantry_wire import Command
from gantry_wire.commands.archive import (
    ArchiveChallenge,
    ArchiveCode,
    ArchivedRanges,
    ArchiveHello,
    ArchiveRangesQuery,
    broker_proof,
)
from pyspark_rocketmq.model import QueueId

LOG = ToyLog({QueueId("orders", "broker-a", 0): 650})
PATTERN = "orders"
RANGES = Command(code=ArchiveCode.LIST_RANGES, ext=ArchiveRangesQuery(broker="broker-a").write())


@dataclass
class Port:
    """A server with its files, and the brokers of the test."""

    folder: Path
    number: int
    tls: Party | None
    warnings: list[tuple[str, str]]
    connections: list[ArchiveConnection] = field(default_factory=list)

    def broker(self, *, secret: str = "", authority: str = "", host: str = "localhost") -> ArchiveConnection:
        """Return a broker's connection with the server's secret and CA, or with other ones."""
        if self.tls is not None and not authority:
            authority = str(self.tls.authority)
        settings = ArchiveSettings(
            address=f"{host}:{self.number}", secret_path=secret or str(self.folder / "secret"), tls_authority=authority
        )
        self.connections.append(ArchiveConnection(settings))
        return self.connections[-1]


@asynccontextmanager
async def serving(tmp_path: Path, *, has_tls: bool = True) -> AsyncIterator[Port]:
    """Run a server on all addresses of this machine."""
    (tmp_path / "secret").write_text("well-kept\n")
    (tmp_path / "other").write_text("guessed")
    tls = Party(tmp_path / "tls", trustme.CA()) if has_tls else None
    files = (str(tls.chain), str(tls.key)) if tls is not None else ("", "")
    warnings: list[tuple[str, str]] = []
    parameters = ServerParameters("", PATTERN, port=PortParameters("::", 0, str(tmp_path / "secret"), *files))
    storage = await asyncio.to_thread(archive_log, LOG, tmp_path / "archive")
    server = ArchiveServer(storage, parameters, lambda *warning: warnings.append(warning))
    await server.start()
    assert server.port is not None
    port = Port(tmp_path, server.port.port, tls, warnings)
    try:
        yield port
    finally:
        for one in port.connections:
            one.abort()
        await server.close()


async def read_ranges(connection: ArchiveConnection) -> ArchivedRanges:
    """Return what the archive has, as a broker requests it."""
    reply = await connection.request(RANGES, 10_000)
    assert reply.code == 0, reply
    return msgspec.json.decode(reply.body, type=ArchivedRanges)


@pytest.mark.parametrize("has_tls", [True, False], ids=["tls", "plain"])
async def test_broker_with_the_secret_reads_from_another_machine(tmp_path: Path, has_tls: bool) -> None:
    """With a certificate of the server, or on a network that is trusted without."""
    async with serving(tmp_path, has_tls=has_tls) as port:
        found = await read_ranges(port.broker())

        assert found.ranges["orders"][0].end == 650
        assert not port.warnings


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
async def test_port_is_open_to_both_families(tmp_path: Path, host: str) -> None:
    """A pod may have addresses of IPv6 only."""
    async with serving(tmp_path, has_tls=False) as port:
        assert (await read_ranges(port.broker(host=host))).ranges


async def test_broker_with_another_secret_gets_nothing(tmp_path: Path) -> None:
    """The refusal names the secret, and the server warns once, however often the broker tries again."""
    async with serving(tmp_path) as port:
        for _ in range(3):
            with pytest.raises(ArchiveUnavailable, match="the broker's secret differs from that of the archive server"):
                await read_ranges(port.broker(secret=str(tmp_path / "other")))

        assert [reason for reason, _ in port.warnings] == ["WrongSecret"]
        assert "guessed" not in str(port.warnings) and "well-kept" not in str(port.warnings)


async def test_without_the_comparison_another_secret_would_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin of the last test: it is the proof that keeps others out, on both sides."""
    monkeypatch.setattr(broker_port, "is_same_proof", lambda *_: True)
    monkeypatch.setattr(broker_side, "is_same_proof", lambda *_: True)
    async with serving(tmp_path) as port:
        assert (await read_ranges(port.broker(secret=str(tmp_path / "other")))).ranges


async def test_server_with_another_secret_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that accepts everybody, to answer as the archive, cannot prove that it knows the secret."""
    monkeypatch.setattr(broker_port, "is_same_proof", lambda *_: True)
    async with serving(tmp_path) as port:
        with pytest.raises(ArchiveUnavailable, match="the archive server's secret differs"):
            await read_ranges(port.broker(secret=str(tmp_path / "other")))


async def test_server_of_another_authority_is_refused(tmp_path: Path) -> None:
    """Before any proof is sent."""
    stranger = Party(tmp_path / "stranger", trustme.CA())
    async with serving(tmp_path) as port:
        with pytest.raises(ArchiveUnavailable, match="certificate verify failed"):
            await read_ranges(port.broker(authority=str(stranger.authority)))


async def test_without_verification_any_authority_would_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin of the last test: it is the CA of the setting that keeps other servers out."""
    stranger = Party(tmp_path / "stranger", trustme.CA())
    unverified = functools.partial(ClientTlsSettings, is_server_verified=False)
    monkeypatch.setattr(broker_side, "ClientTlsSettings", unverified)
    async with serving(tmp_path) as port:
        assert (await read_ranges(port.broker(authority=str(stranger.authority)))).ranges


async def test_certificate_of_another_host_is_refused(tmp_path: Path) -> None:
    """Else any holder of a certificate of the authority could answer as the archive."""
    async with serving(tmp_path) as port:
        assert port.tls is not None
        with pytest.raises(ArchiveUnavailable, match="not valid for '::1'"):
            await read_ranges(port.broker(host="[::1]"))


async def test_port_with_tls_accepts_no_plain_text(tmp_path: Path) -> None:
    """A broker without the CA is not served, although it knows the secret."""
    async with serving(tmp_path) as port:
        settings = ArchiveSettings(address=f"localhost:{port.number}", secret_path=str(tmp_path / "secret"))
        connection = ArchiveConnection(settings)
        with pytest.raises(ArchiveUnavailable):
            await read_ranges(connection)
        connection.abort()


async def test_no_request_is_served_before_the_proof(tmp_path: Path) -> None:
    """All requests of the protocol get code 16, and a large one ends the connection."""
    async with serving(tmp_path, has_tls=False) as port:
        channel = await Channel.connect(f"127.0.0.1:{port.number}")
        for code in (ArchiveCode.PULL, ArchiveCode.SEARCH_OFFSET, ArchiveCode.LIST_RANGES):
            assert (await channel.request(Command(code=code, ext=RANGES.ext), 5_000)).code == 16
        with pytest.raises(RemotingError):
            await channel.request(Command(code=ArchiveCode.PULL, body=b"x" * 100_000), 5_000)
        await channel.close()


async def test_proof_cannot_be_used_twice(tmp_path: Path) -> None:
    """A recorded connection cannot be repeated: each connection has its own challenge."""
    async with serving(tmp_path, has_tls=False) as port:
        first, second = [await Channel.connect(f"127.0.0.1:{port.number}") for _ in range(2)]
        challenge = ArchiveChallenge.read((await first.request(Command(code=ArchiveCode.CHALLENGE), 5_000)).ext).nonce
        proof = ArchiveHello(nonce="n", proof=broker_proof(b"well-kept", challenge, "n")).write()
        await second.request(Command(code=ArchiveCode.CHALLENGE), 5_000)
        answers = [
            (await channel.request(Command(code=ArchiveCode.AUTHENTICATE, ext=proof), 5_000)).code
            for channel in (first, first, second)
        ]
        for channel in (first, second):
            await channel.close()

        assert answers == [0, 16, 16]


async def test_changed_secret_and_certificate_need_no_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that exists continues, and new ones use the new files."""
    monkeypatch.setattr("gantry_remoting.file_watch.CHECK_INTERVAL_S", 0.01)
    async with serving(tmp_path) as port:
        assert port.tls is not None
        before = port.broker()
        await read_ranges(before)
        (tmp_path / "secret").write_text("the next one")
        authority = trustme.CA()
        port.tls.replace(authority)
        port.tls.trust(authority)

        await read_ranges(before)
        after = port.broker()
        deadline = asyncio.get_running_loop().time() + 5
        while True:
            try:
                assert (await read_ranges(after)).ranges
                break
            except ArchiveUnavailable:
                assert asyncio.get_running_loop().time() < deadline
                await asyncio.sleep(0.02)
        (tmp_path / "secret").write_text("")
        with pytest.raises(ArchiveUnavailable, match=r"archiveSecretPath=.*the file is empty"):
            await read_ranges(port.broker())


async def test_broker_of_another_machine_learns_what_is_archived(tmp_path: Path) -> None:
    """The server is a process of its own, started as in a pod, and the broker is configured by its settings."""
    tls = Party(tmp_path / "tls", trustme.CA())
    secret = tmp_path / "secret"
    secret.write_text("well-kept")
    await asyncio.to_thread(archive_log, LOG, tmp_path / "archive")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number = probe.getsockname()[1]
    settings = {
        "runtime.destination": tmp_path / "archive", "serving.listen": f":{number}",
        "serving.secretFile": secret, "serving.tls.certificateFile": tls.chain, "serving.tls.keyFile": tls.key,
    }  # fmt: skip
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gantry_pipelines", "serve", *words, stderr=asyncio.subprocess.PIPE
    )
    try:
        conf = {
            "archiveAddress": f"localhost:{number}", "archiveSecretPath": str(secret),
            "archiveTlsTrustCertPath": str(tls.authority),
        }  # fmt: skip
        async with running_broker(tmp_path / "store", disk=None, clock=None, brokerName="broker-a", **conf) as broker:
            link = broker.archive
            assert link is not None
            while not link.is_known:
                await link.refresh()
                await asyncio.sleep(0.05)
            await wait_until(lambda: link.find("orders", 0) is not None)
            assert link.describe()["archiveState"] == "available"
    finally:
        process.terminate()
        await process.communicate()

    assert process.returncode == 0


@pytest.mark.parametrize(
    ("serving_settings", "problem"),
    [
        ({}, "serving.socket: missing"),
        ({"listen": "[::]:10915"}, "serving.secretFile: missing"),
        ({"listen": "10915", "secretFile": "/s"}, "serving.listen: '10915' is not an address"),
        ({"listen": ":1", "secretFile": "/s", "tls": {"keyFile": "/k"}}, "serving.tls: certificateFile and keyFile go"),
        ({"socket": "/a.sock", "secretFile": "/s"}, "serving.secretFile: has no effect without serving.listen"),
        ({"socket": "/a.sock", "tls": {"certificateFile": "/c", "keyFile": "/k"}}, "serving.tls: has no effect"),
    ],
)
def test_settings_that_would_open_the_archive_are_refused(serving_settings: dict[str, object], problem: str) -> None:
    """A port needs a secret, and a setting without an effect is an error."""
    document = {"serving": serving_settings, "runtime": {"destination": "/archive"}}

    with pytest.raises(ConfigError, match=problem):
        ServeJob().parse(config_of(document, ServeSpec))


def test_socket_and_port_may_be_served_together() -> None:
    """Brokers of the same machine need no secret: only their own user can open the socket."""
    document = {
        "serving": {"socket": "/a.sock", "listen": ":10915", "secretFile": "/s"},
        "runtime": {"destination": "/archive"},
    }
    _, parameters = ServeJob().parse(config_of(document, ServeSpec))

    assert (parameters.socket_path, parameters.port) == ("/a.sock", PortParameters("::", 10915, "/s"))


async def test_server_is_ready_while_it_can_read_the_archive(tmp_path: Path) -> None:
    """Brokers of a cluster connect only then: not before the first run of the archive, nor while its volume is gone."""
    storage = Folder(str(tmp_path / "archive"))
    server = ArchiveServer(storage, ServerParameters(str(tmp_path / "a.sock"), PATTERN, refresh_s=0.02))
    output = Output(OutputFormat.JSON, lines=io.StringIO(), result=io.StringIO())
    reporter = Reporter("serve", output=output)
    running = asyncio.ensure_future(serve(server, reporter))
    found = [reporter.is_ready]
    await asyncio.to_thread(archive_log, LOG, tmp_path / "archive")
    await wait_until(lambda: reporter.is_ready)
    await asyncio.to_thread(os.rename, tmp_path / "archive", tmp_path / "elsewhere")
    await wait_until(lambda: not reporter.is_ready)
    await asyncio.to_thread(os.rename, tmp_path / "elsewhere", tmp_path / "archive")
    await wait_until(lambda: reporter.is_ready)
    reporter.stop.request()
    found.append(reporter.is_ready)
    await running

    assert found == [False, False]
