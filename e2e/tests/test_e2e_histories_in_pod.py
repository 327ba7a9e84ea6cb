"""The load that runs in a pod, run here: it exchanges its lines, and its checker finds missing messages.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme
from gantry_histories.connector import ClientConnector
from gantry_histories.events import Answered, History, Journal, Outcome, Queue, Sent
from gantry_histories.findings import Mode
from gantry_histories.in_pod import LoadSession, count_failures, longest_pause
from gantry_histories.judges import judge_packed

from gantry_access import read_credentials
from gantry_client import Admin, ClientSettings, ClientTlsSettings
from gantry_nameserver import NameServer, NameServerSettings
from gantry_remoting import CannotConnect, RemotingError, TlsMode, TlsSettings
from gantry_testing.accounts import ADMIN, guarded_broker, write_accounts
from gantry_testing.local import running_broker, wait_until
from gantry_wire import Command, RequestCode

ROOT = Path(__file__).resolve().parents[2]
TOPIC = "load"
QUEUES = 2
SECOND = 1_000_000_000
DENIED = 16
LINE_BYTES_MAX = 1 << 26
"""The longest line of a load, which has a whole history."""


def history(*times: float, code: int = 0) -> History:
    """Return a history of messages that were answered at these seconds."""
    found = History()
    outcome = Outcome.OK if code == 0 else Outcome.REFUSED
    for number, at in enumerate(times):
        key, nano = f"{code}-{number}", int(at * SECOND)
        found.add(Sent(client="p", stream=1, key=key, queue=Queue(TOPIC, 0), digest="d", at=nano))
        found.add(Answered(key=key, outcome=outcome, code=code, broker="b", at=nano))
    return found


@pytest.mark.parametrize(
    ("times", "seconds", "pause"),
    [
        ((1, 2, 3, 8, 9), 4, 5),
        ((1, 4.5, 9, 9.5), 5, 4.5),
        ((1, 2, 3), 6, 7),
        ((), 6, 6),
    ],
    ids=["after the mark", "over the mark", "not over yet", "nothing at all"],
)
def test_pause_is_between_two_acknowledgements(times: tuple[float, ...], seconds: float, pause: float) -> None:
    """A pause may begin just before the mark, and may be unfinished."""
    assert longest_pause(history(*times), 4 * SECOND, 10 * SECOND) == (seconds, pause)


def test_refusals_end_no_pause_and_are_counted() -> None:
    """Only code 0 is an acknowledgement."""
    refused = history(5, 6, 7, code=14)

    assert longest_pause(refused, 4 * SECOND, 10 * SECOND).pause == 6
    assert count_failures(refused) == {"14": 3}


class LoadProcess:
    """A load as a process, and its lines."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def receive(self) -> dict[str, Any]:
        """Read the next line of the load as JSON."""
        assert self._process.stdout is not None
        async with asyncio.timeout(180):
            answer: dict[str, Any] = json.loads(await self._process.stdout.readline())
        return answer

    async def request(self, **document: Any) -> dict[str, Any]:
        """Send a line to the load, and return its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(document).encode() + b"\n")
        return await self.receive()


@asynccontextmanager
async def running_load(address: str, *more: str) -> AsyncIterator[LoadProcess]:
    """Run a load whose clients use the name server at an address."""
    words = ("--name-server", address, "--topic", TOPIC, "--queues", str(QUEUES), *more)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "e2e" / "histories")}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gantry_histories.in_pod", *words),
        stdin=pipe,
        stdout=pipe,
        env=environment,
        limit=LINE_BYTES_MAX,
    )
    try:
        yield LoadProcess(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def load(tmp_path: Path) -> AsyncIterator[tuple[LoadProcess, Admin]]:
    """Run a name server, a broker with a topic, and a load on it."""
    server = NameServer(NameServerSettings(bind_address="127.0.0.1", listen_port=0), tmp_path / "names")
    await server.start()
    address = f"127.0.0.1:{server.port}"
    async with running_broker(tmp_path / "store", namesrvAddr=address), Admin(address) as admin:
        await admin.topics.create(TOPIC, queues=QUEUES)
        try:
            async with running_load(address) as process:
                yield process, admin
        finally:
            await server.close()


async def test_load_reports_the_interruption_of_its_clients(tmp_path: Path) -> None:
    """Without a fault there are no findings."""
    async with load(tmp_path) as (process, _):
        first = await process.receive()
        marked = await process.request(mark="nothing")
        report = await process.request(report=50)
        verdict = await process.request(finish=[])

    assert first["acknowledged"] >= 20
    assert marked["marked"] == report["mark"] == "nothing"
    assert report["acknowledged"] >= marked["acknowledged"] + 50
    assert report.keys() == {"mark", "acknowledged", "seconds", "pause"}
    assert verdict["findings"] == [] and verdict["acknowledged"] >= report["acknowledged"]
    assert judge_packed(verdict["recording"], tmp_path / "kept") == []


async def test_missing_messages_are_found(tmp_path: Path) -> None:
    """The twin: the topic is deleted with all its messages."""
    async with load(tmp_path) as (process, admin):
        await process.receive()
        await admin.topics.delete(TOPIC)
        await admin.topics.create(TOPIC, queues=QUEUES)
        verdict = await process.request(finish=[])

    assert any(finding.startswith(("LOST", "MOVED", "DISPLACED")) for finding in verdict["findings"])
    assert judge_packed(verdict["recording"], tmp_path / "kept") == []


class EndingMaster:
    """A load and a connector whose master ends twice: while a consumer reads to the end, and while all is read."""

    acknowledged = 0

    def __init__(self) -> None:
        self.journal = Journal()
        self.addresses = iter(("a:1", "b:1", "c:1"))
        self.finished: list[str] = []

    async def stop(self) -> None:
        pass

    async def master(self) -> str:
        return next(self.addresses)

    async def finish(self, address: str) -> dict[tuple[str, Queue], int]:
        self.finished.append(address)
        if address == "a:1":
            raise CannotConnect("refused")
        return {}

    async def connect(self, address: str) -> Any:
        if address == "b:1":
            raise CannotConnect("refused")
        return SimpleNamespace(close=self.stop)


async def test_everything_is_read_from_the_master_that_follows_one_that_ends(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Kubernetes reports a pod that was deleted by force as gone while its process still acknowledges."""
    servers: Any = EndingMaster()
    out = StringIO()
    session = LoadSession(servers, servers, [], Mode(), out)

    await session._finish([])

    assert servers.finished == ["a:1", "b:1", "c:1"]
    assert json.loads(out.getvalue())["findings"] == []
    assert capsys.readouterr().err.count("reading everything again: refused") == 2


# -- TLS and accounts --------------------------------------------------------------------------------------------------


@asynccontextmanager
async def guarded_servers(folder: Path) -> AsyncIterator[str]:
    """Run a name server and a broker that accept only administrators over TLS; yield the name server's address."""
    authority = trustme.CA()
    issued = authority.issue_cert("gantry")
    chain, key, root = (folder / name for name in ("tls.crt", "tls.key", "ca.crt"))
    chain.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(str(key))
    authority.cert_pem.write_to_path(str(root))
    account = folder / "credentials"
    account.write_text(f"accessKey: {ADMIN.access_key}\nsecretKey: {ADMIN.secret_key}\n")
    settings = NameServerSettings(
        bind_address="127.0.0.1", listen_port=0, acl_enable=True,
        acl_file=str(write_accounts(folder / "names.yml")), tls=TlsSettings(TlsMode.ENFORCING, str(chain), str(key)),
    )  # fmt: skip
    server = NameServer(settings, folder / "names")
    await server.start()
    address = f"127.0.0.1:{server.port}"
    conf: dict[str, Any] = {
        "namesrvAddr": address, "aclCredentialsPath": str(account), "tlsMode": "enforcing",
        "tlsServerCertPath": str(chain), "tlsServerKeyPath": str(key), "tlsEnable": "true",
        "tlsClientTrustCertPath": str(root), "tlsClientCheckHostName": "false",
    }  # fmt: skip
    tls = ClientTlsSettings(authority_file=str(root), is_host_name_checked=False)
    client = ClientSettings(tls=tls, credentials=read_credentials(account))
    try:
        async with guarded_broker(folder, **conf) as broker, Admin(address, client_settings=client) as admin:
            await wait_until(lambda: address in broker.registration.registered)
            await admin.topics.create(TOPIC, queues=QUEUES)
            yield address
    finally:
        await server.close()


async def test_load_connects_with_tls_and_an_account(tmp_path: Path) -> None:
    """Producers, a consumer and the checker all authenticate, and there are no findings."""
    async with guarded_servers(tmp_path) as address:
        options = ("--tls-ca", str(tmp_path / "ca.crt"), "--account", str(tmp_path / "credentials"))
        async with running_load(address, *options) as process:
            first = await process.receive()
            verdict = await process.request(finish=[])

    assert first["acknowledged"] >= 20
    assert verdict["findings"] == [] and verdict["failed"] == {}


async def test_clients_without_tls_or_account_are_refused(tmp_path: Path) -> None:
    """The twin: plain text is closed, and a client without an account is denied."""
    question = Command(code=RequestCode.GET_BROKER_CLUSTER_INFO)
    async with guarded_servers(tmp_path) as address:
        without_account = await ClientConnector(tmp_path / "ca.crt").connect(address)
        answer = await without_account.request(question, 5_000)
        await without_account.close()
        plain = await ClientConnector().connect(address)
        with pytest.raises(RemotingError):
            await plain.request(question, 5_000)
        await plain.close()

    assert answer.code == DENIED
