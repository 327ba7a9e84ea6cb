"""The application of SDKs that runs in a pod, run here in front of a real broker, and its judge."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from gantry_histories.proxied import judge

from gantry_client import Admin
from gantry_nameserver import NameServer, NameServerSettings
from gantry_testing.local import running_broker
from gantry_testing.ports import free_port_run
from gantry_wire.commands.admin import SubscriptionGroupConfig

ROOT = Path(__file__).resolve().parents[2]
TOPIC, GROUP = "load", "billing"
LINE_SECONDS_MAX = 180


@pytest.mark.parametrize(
    ("acknowledged", "received", "corrupt", "findings"),
    [
        ({"a", "b"}, {"a", "b"}, 0, []),
        ({"a"}, {"a", "b"}, 0, []),
        ({"a", "b"}, {"a"}, 0, ["acknowledged and never received: b"]),
        ({"a"}, {"a", "z"}, 0, ["received and never sent: z"]),
        (set(), set(), 2, ["2 bodies have changed"]),
    ],
    ids=["all", "stored though the send failed", "lost", "never sent", "changed"],
)
def test_judge_finds_every_violation(
    acknowledged: set[str], received: set[str], corrupt: int, findings: list[str]
) -> None:
    """What is acknowledged arrives, unchanged; a message whose send failed may arrive or not."""
    assert judge({"a", "b"}, acknowledged, received, corrupt) == findings


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[str]:
    """Run a name server and a broker with the topic and the group; yield the name server's address."""
    server = NameServer(NameServerSettings(bind_address="127.0.0.1", listen_port=0), folder / "names")
    await server.start()
    address = f"127.0.0.1:{server.port}"
    try:
        async with running_broker(folder / "store", namesrvAddr=address), Admin(address) as admin:
            await admin.topics.create(TOPIC, queues=2)
            await admin.groups.create(SubscriptionGroupConfig(group_name=GROUP))
            yield address
    finally:
        await server.close()


@asynccontextmanager
async def process(*words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a Python module with pipes."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "e2e" / "histories")}
    pipe = asyncio.subprocess.PIPE
    made = await asyncio.create_subprocess_exec(sys.executable, "-m", *words, stdin=pipe, stdout=pipe, env=environment)
    try:
        yield made
    finally:
        if made.returncode is None:
            made.kill()
        await made.wait()


async def line_of(made: asyncio.subprocess.Process) -> str:
    assert made.stdout is not None
    async with asyncio.timeout(LINE_SECONDS_MAX):
        return (await made.stdout.readline()).decode()


async def request(made: asyncio.subprocess.Process, **document: Any) -> dict[str, Any]:
    """Send a line to the application, and return its answer."""
    assert made.stdin is not None
    made.stdin.write(json.dumps(document).encode() + b"\n")
    found: dict[str, Any] = json.loads(await line_of(made))
    return found


@pytest.mark.verify
async def test_application_survives_the_restart_of_its_proxy(tmp_path: Path) -> None:
    """A killed proxy costs failed sends, which are counted, and no acknowledged message."""
    port = free_port_run(2)
    async with cluster(tmp_path) as address:
        proxy = (
            "gantry_proxy",
            "-n",
            address,
            "--listen",
            f"127.0.0.1:{port}",
            "--http-listen",
            f"127.0.0.1:{port + 1}",
        )
        words = ("--endpoint", f"127.0.0.1:{port}", "--topic", TOPIC, "--group", GROUP)
        async with process(*proxy) as first:
            assert "listening" in await line_of(first)
            async with process("gantry_histories.proxied", *words) as application:
                first_acknowledged = json.loads(await line_of(application))["acknowledged"]
                calm = await request(application, report=20)
                first.send_signal(signal.SIGKILL)
                await first.wait()
                async with process(*proxy) as second:
                    assert "listening" in await line_of(second)
                    disturbed = await request(application, report=20)
                    verdict = await request(application, finish=[])

    assert first_acknowledged >= 20 and calm["failures"] == 0
    assert disturbed["acknowledged"] >= calm["acknowledged"] + 20
    assert verdict["findings"] == [] and verdict["received"] >= verdict["acknowledged"] >= 60
    assert verdict["failures"] >= disturbed["failures"] > 0, "no send failed while there was no proxy"
