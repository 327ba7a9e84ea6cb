"""Who is read, in which order, and by which way: name servers, sidecars and directories in one picture."""

from __future__ import annotations

from typing import Any

import pytest

from gantry_client import BrokerAddress
from pyspark_rocketmq.discovery import Discovery
from pyspark_rocketmq.model import ReadFrom, Replica, TransportKind
from pyspark_rocketmq.replica_view import Unreachable
from pyspark_rocketmq.settings import ReadSettings
from pyspark_rocketmq.views import attempts

FILE, HTTP, PULL = TransportKind.FILE, TransportKind.HTTP, TransportKind.PULL


class Registered:
    """Stands for name servers and brokers: who is registered, and how far each broker's log goes."""

    def __init__(self, *numbers: int, ends: dict[int, int] | None = None) -> None:
        self.numbers = numbers
        self.ends = ends or {}
        self.is_silent = False

    def ask(self, question: Any) -> Any:
        if self.is_silent:
            raise Unreachable("no name server answers")
        return question(self)

    @property
    def brokers(self) -> Registered:
        return self

    def all(self) -> list[BrokerAddress]:
        return [
            BrokerAddress(cluster="c", name="a", broker_id=number, address=f"a{number}:1") for number in self.numbers
        ]

    def runtime(self, address: str) -> dict[str, str]:
        if not self.ends:
            return {}
        return {"commitLogMinOffset": "0", "commitLogMaxOffset": str(self.ends[int(address[1])])}


class Beside:
    """Stands for sidecars: what each says of its broker."""

    def __init__(self, **ends: int) -> None:
        self.statuses: dict[str, dict[str, Any]] = {
            f"http://{name}": {
                "broker_name": "a",
                "role": "master" if name == "s0" else "slave",
                "confirmed": end,
                "committed": end + 5,
                "said": {"broker_id": int(name[1]), "address": f"a{name[1]}:1"},
            }
            for name, end in ends.items()
        }
        self.is_silent = False

    def members(self) -> dict[str, dict[str, Any]]:
        if self.is_silent:
            raise Unreachable("http://s0 does not answer")
        return self.statuses


def found(registered: Registered, beside: Beside, **more: Any) -> tuple[Replica, ...]:
    return discovery(registered, beside, **more).replicas("a")


def discovery(registered: Registered, beside: Beside, **more: Any) -> Discovery:
    given: dict[str, Any] = {"name_servers": "127.0.0.1:1", "replica_lag_bytes_max": 100}
    return Discovery(ReadSettings(**given | more), registered, beside)  # type: ignore[arg-type]


def test_slaves_come_first_and_the_master_last() -> None:
    """In turn of their numbers, each with the ways that are known to it."""
    replicas = found(Registered(0, 1, 2), Beside(s0=50, s2=50), directories={"a:1": "/one"})

    assert replicas == (
        Replica("a", 1, "a1:1", directory="/one"),
        Replica("a", 2, "a2:1", sidecar="http://s2"),
        Replica("a", 0, "a0:1", sidecar="http://s0"),
    )


@pytest.mark.parametrize(
    ("read_from", "numbers"),
    [(ReadFrom.SLAVE, [1, 2]), (ReadFrom.SLAVE_FIRST, [1, 2, 0]), (ReadFrom.MASTER, [0])],
)
def test_only_wanted_replicas_are_read(read_from: ReadFrom, numbers: list[int]) -> None:
    """A master that shall not be read is not read, though a slave fails."""
    assert [one.number for one in found(Registered(0, 1, 2), Beside(), read_from=read_from)] == numbers


def test_a_slave_that_is_far_behind_is_left_out() -> None:
    """By what sidecars say, and where there is none, by what brokers say themselves; one that nobody knows stays."""
    assert [one.number for one in found(Registered(0, 1, 2), Beside(s0=1000, s1=899, s2=900))] == [2, 0]
    ends = {0: 1000, 1: 899, 2: 900}
    assert [one.number for one in found(Registered(0, 1, 2, ends=ends), Beside())] == [2, 0]
    assert [one.number for one in found(Registered(0, 1, 2), Beside())] == [1, 2, 0]


def test_a_log_whose_broker_is_down_is_found_by_its_sidecar() -> None:
    """Nobody is registered, and the sidecars are there."""
    assert found(Registered(), Beside(s0=10, s1=10)) == (
        Replica("a", 1, "a1:1", sidecar="http://s1"), Replica("a", 0, "a0:1", sidecar="http://s0")
    )  # fmt: skip


def test_one_source_that_is_silent_does_not_hide_what_the_other_says() -> None:
    """And it is named; only when nobody says anything it is an error."""
    registered, beside = Registered(0), Beside(s0=1)
    beside.is_silent = True
    picture = discovery(registered, beside)

    assert [one.address for one in picture.replicas("a")] == ["a0:1"]
    assert "http://s0 does not answer" in picture.trouble
    registered.is_silent = True
    picture.forget()
    with pytest.raises(Unreachable):
        picture.replicas("a")


def test_best_ways_of_all_replicas_come_before_second_ones() -> None:
    """A range of the log is never pulled, and a directory that stands for all is tried once."""
    one = Replica("a", 1, "a1:1", sidecar="http://s1", directory="/all")
    other = Replica("a", 0, "a0:1", sidecar="http://s0", directory="/all")

    assert attempts((one, other), TransportKind.AUTO) == [
        (one, FILE), (one, HTTP), (other, HTTP), (one, PULL), (other, PULL)
    ]  # fmt: skip
    assert attempts((one, other), TransportKind.AUTO, is_physical=True) == [(one, FILE), (one, HTTP), (other, HTTP)]
    assert attempts((one, other), PULL) == [(one, PULL), (other, PULL)]
    assert attempts((one,), PULL, is_physical=True) == []
