"""A small part of the interop run: both client versions, three ways to use a broker, a few hundred messages.

The whole of it, 100,000 messages in every scenario, is `make interop`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from gantry_interop import drivers, java, peers
from gantry_interop.processes import Nursery

pytestmark = pytest.mark.needs_java

COUNT = 500
KINDS = ["sync", "ordered", pytest.param("litepull", marks=pytest.mark.verify)]
SCENARIO_SECONDS_MAX = 180.0


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("interop")


@pytest.fixture(scope="module")
def nursery(directory: Path) -> Iterator[Nursery]:
    with Nursery(directory / "logs") as nursery:
        yield nursery


@pytest.fixture(scope="module")
def peer(directory: Path, nursery: Nursery) -> peers.Peer:
    return peers.start("gantry", nursery, peers.Layout(directory / "peer"))


@pytest.mark.parametrize("client", java.CLIENT_MODULES)
@pytest.mark.parametrize("scenario", KINDS)
def test_java_client_receives_what_it_sent(
    client: str, scenario: str, peer: peers.Peer, nursery: Nursery, directory: Path
) -> None:
    """No message of an unmodified client is lost, altered or out of order within its queue."""
    options = drivers.DriverOptions(
        name_server=peer.address,
        count=COUNT,
        retry_count=0,
        seed=7,
        levels=peers.SHORT_DELAY_LEVELS,
        run=scenario,
        scenario_seconds_max=SCENARIO_SECONDS_MAX,
    )

    [verdict] = drivers.run_scenarios(nursery, client, (scenario,), options, directory / f"home-{client}")

    assert (verdict.scenario, verdict.broken, verdict.kept) == (scenario, [], True)
    assert (verdict.sent, verdict.received, verdict.failed) == (COUNT, COUNT, 0)
    assert peer.broker.is_running()
    assert peer.name_server.is_running()


@pytest.mark.verify
@pytest.mark.parametrize("client", java.POP_CLIENTS)
@pytest.mark.parametrize("scenario", ["sync", "retry", "dlq", "popandpull"])
def test_java_client_consumes_by_pop(
    client: str, scenario: str, peer: peers.Peer, nursery: Nursery, directory: Path
) -> None:
    """With its group in pop mode; failed messages come back and are given up, also beside members that pull."""
    options = drivers.DriverOptions(
        name_server=peer.address, count=COUNT, retry_count=100, seed=7, levels=peers.SHORT_DELAY_LEVELS,
        run=f"pop{scenario}", scenario_seconds_max=SCENARIO_SECONDS_MAX, extra=("--pop", "1"),
    )  # fmt: skip

    [verdict] = drivers.run_scenarios(nursery, client, (scenario,), options, directory / f"home-pop-{client}")

    assert (verdict.broken, verdict.kept, verdict.failed) == ([], True, 0)
    assert verdict.details["popping"] is True
