"""Whether a broker stands still is counted in looks: nobody is blamed for a machine that stood still."""

from __future__ import annotations

from pathlib import Path

import pytest

from gantry_cli.pod import member
from gantry_cli.pod.member import Pulse


class Broker:
    """What its page says, and what time it is."""

    def __init__(self) -> None:
        self.published: int | None = 1
        self.now = 0.0

    def looks(self, one: Pulse, seconds: list[float]) -> list[bool]:
        """What is found after each of these waits."""
        found = []
        for wait in seconds:
            self.now += wait
            found.append(one.is_still())
        return found


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    """One whose page is made up."""
    made = Broker()
    monkeypatch.setattr(member.Pulse, "_published", lambda self: made.published)
    return made


def made(broker: Broker, looks_max: int = 3) -> Pulse:
    """That looks at it."""
    return Pulse(Path("page"), looks_max, now=lambda: broker.now)


def test_a_page_that_stays_the_same_is_still_after_so_many_looks(broker: Broker) -> None:
    """The first look only learns; what was said is counted anew, or the next broker would be killed at its start."""
    one = made(broker)

    assert broker.looks(one, [1.0] * 8) == [False, False, False, True, False, False, False, True]


def test_looks_that_come_together_are_one(broker: Broker) -> None:
    """Whoever asks often, as kubelet's probes make us do, does not shorten the time."""
    assert not any(broker.looks(made(broker), [0.1] * 30))


def test_a_machine_that_slept_blames_nobody(broker: Broker) -> None:
    """An hour between two looks is one look."""
    assert broker.looks(made(broker), [1.0, 1.0, 3600.0]) == [False, False, False]


def test_a_page_that_moves_or_is_gone_is_not_still(broker: Broker) -> None:
    """Each publication begins the count anew; without a page, or after its last word, there is nothing to count."""
    one = made(broker)
    broker.looks(one, [1.0] * 3)
    broker.published = 2
    assert broker.looks(one, [1.0] * 3) == [False, False, False]
    broker.published = None
    assert not any(broker.looks(one, [1.0] * 9))


def test_it_can_be_switched_off(broker: Broker) -> None:
    """0 looks are never enough."""
    assert not any(broker.looks(made(broker, 0), [1.0] * 9))
