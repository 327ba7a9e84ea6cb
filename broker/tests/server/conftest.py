"""Fixtures of the tests that compare the tiers of sends with the slow path: both kinds of batches, and a broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gantry_broker.app import Broker
from gantry_broker.server.send import send_batch
from gantry_testing.local import dialogue, make_predictable, running_broker


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
async def broker(kind_of_batch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    """A broker that has the topic, and whose random choices are the same each time."""
    async with running_broker(tmp_path) as one, dialogue(one) as client:
        await client.send_ok(queueId="3")
        make_predictable(one, monkeypatch)
        yield one
