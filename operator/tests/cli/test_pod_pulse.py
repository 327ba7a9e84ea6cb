"""A stalled broker is detected by a number of checks, so a suspended machine does not cause a kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from gantry_cli.pod import member
from gantry_cli.pod.member import BrokerWatchdog


class Broker:
    """A broker's page, and the clock."""

    def __init__(self) -> None:
        self.published: int | None = 1
        self.now = 0.0

    def check_after(self, one: BrokerWatchdog, seconds: list[float]) -> list[bool]:
        """Return the results of checks after each of these waits."""
        found = []
        for wait in seconds:
            self.now += wait
            found.append(one.is_stalled())
        return found


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    """A broker with a simulated page."""
    made = Broker()
    monkeypatch.setattr(member.BrokerWatchdog, "_published", lambda self: made.published)
    return made


def watchdog_of(broker: Broker, checks_max: int = 3) -> BrokerWatchdog:
    """Return a watchdog of the broker's page."""
    return BrokerWatchdog(Path("page"), checks_max, now=lambda: broker.now)


def test_unchanged_page_is_stalled_after_enough_checks(broker: Broker) -> None:
    """The first check only reads the page; after a result the count restarts, or a new broker would be killed."""
    one = watchdog_of(broker)

    assert broker.check_after(one, [1.0] * 8) == [False, False, False, True, False, False, False, True]


def test_checks_in_quick_succession_count_once(broker: Broker) -> None:
    """Frequent calls, as by kubelet's probes, do not shorten the time."""
    assert not any(broker.check_after(watchdog_of(broker), [0.1] * 30))


def test_suspended_machine_counts_as_one_check(broker: Broker) -> None:
    """An hour between two checks is one check."""
    assert broker.check_after(watchdog_of(broker), [1.0, 1.0, 3600.0]) == [False, False, False]


def test_changing_or_missing_page_is_not_stalled(broker: Broker) -> None:
    """Each publication restarts the count; without a page, or after its final one, there is no count."""
    one = watchdog_of(broker)
    broker.check_after(one, [1.0] * 3)
    broker.published = 2
    assert broker.check_after(one, [1.0] * 3) == [False, False, False]
    broker.published = None
    assert not any(broker.check_after(one, [1.0] * 9))


def test_watchdog_can_be_disabled(broker: Broker) -> None:
    """With 0 checks the broker is never stalled."""
    assert not any(broker.check_after(watchdog_of(broker, 0), [1.0] * 9))
