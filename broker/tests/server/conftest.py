"""Fixtures that the tests of the server share: the usual broker, its client and its clock, and the broker of the tiers.

`broker` has the system's clock, unless the test uses the fixture `clock`: as an argument, or with
`pytestmark = pytest.mark.usefixtures("clock")`, which a module has if all its tests need the fake clock. A module that
needs other settings overrides `broker`; then `client` connects to that broker.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gantry_broker.app import Broker
from gantry_broker.server.send import send_batch
from gantry_testing.fake_clock import FakeClock
from gantry_testing.local import Dialogue, dialogue, make_predictable, running_broker
from gantry_testing.refusals import BrokerAndClient, strict_broker


@pytest.fixture
def clock() -> FakeClock:
    """The fake clock, which stands still until the test advances it."""
    return FakeClock()


@pytest.fixture
async def broker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker with the usual settings, and with the fake clock if the test uses `clock`."""
    clock: FakeClock | None = request.getfixturevalue("clock") if "clock" in request.fixturenames else None
    async with running_broker(tmp_path, clock=clock) as one:
        yield one


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Dialogue]:
    """A client that is connected to `broker`."""
    async with dialogue(broker) as one:
        yield one


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[BrokerAndClient]:
    """A broker and a client, for requests that the broker refuses and that must change nothing."""
    async with strict_broker(tmp_path) as one:
        yield one


@pytest.fixture(params=["python", pytest.param("compiled", marks=pytest.mark.needs_speedups)])
def kind_of_batch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test with both classes of batches of sends."""
    kind: str = request.param
    if kind == "python":
        monkeypatch.setattr(send_batch, "CompiledSendBatch", None)
    elif send_batch.CompiledSendBatch is None:
        pytest.skip("the compiled module is switched off in this process")
    return kind


@pytest.fixture
async def tiers_broker(kind_of_batch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    """A broker that has the topic, and whose random choices are the same each time."""
    async with running_broker(tmp_path) as one, dialogue(one) as client:
        await client.send_ok(queueId="3")
        make_predictable(one, monkeypatch)
        yield one
