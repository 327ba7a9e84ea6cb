"""Which replicas are read, in which order, and by which transport: name servers, sidecars and directories combined."""

from __future__ import annotations

from typing import Any

import pytest

from gantry_client import BrokerAddress
from pyspark_rocketmq.discovery import Discovery
from pyspark_rocketmq.model import ReadFrom, Replica, TransportKind
from pyspark_rocketmq.replica_reader import list_attempts
from pyspark_rocketmq.replica_view import Unreachable
from pyspark_rocketmq.settings import ReadSettings

FILE, HTTP, PULL = TransportKind.FILE, TransportKind.HTTP, TransportKind.PULL


class FakeBrokers:
    """Fake name servers and brokers: the registered broker ids, and the end of each broker's log."""

    def __init__(self, *numbers: int, ends: dict[int, int] | None = None) -> None:
        self.numbers = numbers
        self.ends = ends or {}
        self.is_unavailable = False

    def call(self, request: Any) -> Any:
        if self.is_unavailable:
            raise Unreachable("no name server answers")
        return request(self)

    @property
    def brokers(self) -> FakeBrokers:
        return self

    def all(self) -> list[BrokerAddress]:
        return [
            BrokerAddress(cluster="c", name="a", broker_id=number, address=f"a{number}:1") for number in self.numbers
        ]

    def runtime(self, address: str) -> dict[str, str]:
        if not self.ends:
            return {}
        return {"commitLogMinOffset": "0", "commitLogMaxOffset": str(self.ends[int(address[1])])}


class FakeSidecars:
    """Fake sidecars, with the status of each sidecar's broker."""

    def __init__(self, **ends: int) -> None:
        self.statuses: dict[str, dict[str, Any]] = {
            f"http://{name}": {
                "broker_name": "a",
                "role": "master" if name == "s0" else "slave",
                "confirmed": end,
                "committed": end + 5,
                "reported_role": {"broker_id": int(name[1]), "address": f"a{name[1]}:1"},
            }
            for name, end in ends.items()
        }
        self.is_unavailable = False

    def members(self) -> dict[str, dict[str, Any]]:
        if self.is_unavailable:
            raise Unreachable("http://s0 does not answer")
        return self.statuses


def discover(brokers_fake: FakeBrokers, sidecars_fake: FakeSidecars, **more: Any) -> tuple[Replica, ...]:
    return discovery(brokers_fake, sidecars_fake, **more).replicas("a")


def discovery(brokers_fake: FakeBrokers, sidecars_fake: FakeSidecars, **more: Any) -> Discovery:
    given: dict[str, Any] = {"name_servers": "127.0.0.1:1", "replica_lag_bytes_max": 100}
    return Discovery(ReadSettings(**given | more), brokers_fake, sidecars_fake)  # type: ignore[arg-type]


def test_slaves_of_sidecars_of_an_earlier_version_are_found() -> None:
    """Their status names the role that the broker reports `said`."""
    sidecars = FakeSidecars(s0=50, s2=50)
    for status in sidecars.statuses.values():
        status["said"] = status.pop("reported_role")

    assert [one.number for one in discover(FakeBrokers(0), sidecars)] == [2, 0]


def test_slaves_come_first_and_the_master_last() -> None:
    """Slaves are ordered by their broker ids; each replica has all its known transports."""
    replicas = discover(FakeBrokers(0, 1, 2), FakeSidecars(s0=50, s2=50), directories={"a:1": "/one"})

    assert replicas == (
        Replica("a", 1, "a1:1", directory="/one"),
        Replica("a", 2, "a2:1", sidecar="http://s2"),
        Replica("a", 0, "a0:1", sidecar="http://s0"),
    )


@pytest.mark.parametrize(
    ("read_from", "numbers"),
    [(ReadFrom.SLAVE, [1, 2]), (ReadFrom.SLAVE_FIRST, [1, 2, 0]), (ReadFrom.MASTER, [0])],
)
def test_read_from_selects_the_replicas(read_from: ReadFrom, numbers: list[int]) -> None:
    """A master that is excluded is not read, even if a slave fails."""
    assert [one.number for one in discover(FakeBrokers(0, 1, 2), FakeSidecars(), read_from=read_from)] == numbers


def test_lagging_slave_is_left_out() -> None:
    """The lag comes from sidecars, else from the brokers; a slave with unknown lag is kept."""
    assert [one.number for one in discover(FakeBrokers(0, 1, 2), FakeSidecars(s0=1000, s1=899, s2=900))] == [2, 0]
    ends = {0: 1000, 1: 899, 2: 900}
    assert [one.number for one in discover(FakeBrokers(0, 1, 2, ends=ends), FakeSidecars())] == [2, 0]
    assert [one.number for one in discover(FakeBrokers(0, 1, 2), FakeSidecars())] == [1, 2, 0]


def test_log_of_a_stopped_broker_is_found_by_its_sidecar() -> None:
    """No broker is registered, but the sidecars run."""
    assert discover(FakeBrokers(), FakeSidecars(s0=10, s1=10)) == (
        Replica("a", 1, "a1:1", sidecar="http://s1"), Replica("a", 0, "a0:1", sidecar="http://s0")
    )  # fmt: skip


def test_unavailable_source_does_not_hide_the_other_one() -> None:
    """Its error is recorded; discovery fails only if no source answers."""
    brokers_fake, sidecars_fake = FakeBrokers(0), FakeSidecars(s0=1)
    sidecars_fake.is_unavailable = True
    discovered = discovery(brokers_fake, sidecars_fake)

    assert [one.address for one in discovered.replicas("a")] == ["a0:1"]
    assert "http://s0 does not answer" in discovered.failures
    brokers_fake.is_unavailable = True
    discovered.invalidate()
    with pytest.raises(Unreachable):
        discovered.replicas("a")


def test_best_transports_of_all_replicas_come_before_second_ones() -> None:
    """A range of the log is never pulled, and a directory that several replicas share is tried once."""
    one = Replica("a", 1, "a1:1", sidecar="http://s1", directory="/all")
    other = Replica("a", 0, "a0:1", sidecar="http://s0", directory="/all")

    assert list_attempts((one, other), TransportKind.AUTO) == [
        (one, FILE), (one, HTTP), (other, HTTP), (one, PULL), (other, PULL)
    ]  # fmt: skip
    assert list_attempts((one, other), TransportKind.AUTO, is_physical=True) == [
        (one, FILE),
        (one, HTTP),
        (other, HTTP),
    ]
    assert list_attempts((one, other), PULL) == [(one, PULL), (other, PULL)]
    assert list_attempts((one,), PULL, is_physical=True) == []
