"""The load that runs in a pod, run here: it hears and says its lines, and its judge finds what is missing."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from gantry_histories.events import Answered, History, Outcome, Queue, Sent
from gantry_histories.in_pod import failures, longest_pause

from gantry_broker.testing.local import running_broker
from gantry_client import Admin
from gantry_nameserver import NameServer, NameServerSettings

ROOT = Path(__file__).resolve().parents[2]
TOPIC = "load"
QUEUES = 2
SECOND = 1_000_000_000


def history(*times: float, code: int = 0) -> History:
    """Messages that were answered at these seconds."""
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
def test_a_pause_is_between_two_acknowledgements(times: tuple[float, ...], seconds: float, pause: float) -> None:
    """Also one that began just before the mark, and one that is not over."""
    assert longest_pause(history(*times), 4 * SECOND, 10 * SECOND) == (seconds, pause)


def test_refusals_end_no_pause_and_are_counted() -> None:
    """Only code 0 is an acknowledgement."""
    refused = history(5, 6, 7, code=14)

    assert longest_pause(refused, 4 * SECOND, 10 * SECOND).pause == 6
    assert failures(refused) == {"14": 3}


class Talk:
    """A load as a process, and its lines."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        async with asyncio.timeout(60):
            answer: dict[str, Any] = json.loads(await self._process.stdout.readline())
        return answer

    async def say(self, **document: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(document).encode() + b"\n")
        return await self.hear()


@asynccontextmanager
async def load(tmp_path: Path) -> AsyncIterator[tuple[Talk, Admin]]:
    """A name server, a broker, a topic, and a load on it."""
    server = NameServer(NameServerSettings(bind_address="127.0.0.1", listen_port=0), tmp_path / "names")
    await server.start()
    address = f"127.0.0.1:{server.port}"
    words = ("--name-server", address, "--topic", TOPIC, "--queues", str(QUEUES))
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "e2e" / "histories")}
    pipe = asyncio.subprocess.PIPE
    async with running_broker(tmp_path / "store", namesrvAddr=address), Admin(address) as admin:
        await admin.topics.create(TOPIC, queues=QUEUES)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gantry_histories.in_pod", *words), stdin=pipe, stdout=pipe, env=environment
        )
        try:
            yield Talk(process), admin
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            await server.close()


async def test_a_load_says_what_its_clients_have_noticed(tmp_path: Path) -> None:
    """Of a broker that nothing is done to, nothing is found."""
    async with load(tmp_path) as (talk, _):
        first = await talk.hear()
        marked = await talk.say(mark="nothing")
        report = await talk.say(report=50)
        verdict = await talk.say(finish=[])

    assert first["acknowledged"] >= 20
    assert marked["marked"] == report["mark"] == "nothing"
    assert report["acknowledged"] >= marked["acknowledged"] + 50
    assert verdict["findings"] == [] and verdict["acknowledged"] >= report["acknowledged"]


async def test_what_is_gone_in_the_end_is_found(tmp_path: Path) -> None:
    """The twin: somebody takes the topic away, with all that is in it."""
    async with load(tmp_path) as (talk, admin):
        await talk.hear()
        await admin.topics.delete(TOPIC)
        await admin.topics.create(TOPIC, queues=QUEUES)
        verdict = await talk.say(finish=[])

    assert any(finding.startswith(("LOST", "MOVED", "DISPLACED")) for finding in verdict["findings"])
