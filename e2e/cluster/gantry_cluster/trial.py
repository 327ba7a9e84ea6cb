"""One fault under load, judged: what was announced, what is gone, and how long clients noticed it.

    the load runs -- mark -- fault -- everything is well again -- report -- stop, read everything, judge

Announced is what the operator wrote into the Lease when it named a master: how many bytes at most that loses. The Lease
forgets old reigns, so it is read all the while.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, final

from gantry_cluster.errors import ApiRefused
from gantry_cluster.groups import Group

LOOK_SECONDS: Final = 0.2
MORE: Final = 100
"""Acknowledgements that show that all is well again."""
QUEUES: Final = 4
UNKNOWN_LOSS: Final = -1


@final
class Announcements:
    """The reigns of a shard that began while this is entered."""

    def __init__(self, group: Group, shard: int) -> None:
        self._group = group
        self._shard = shard
        self._before = group.record(shard)["epoch"]
        self._reigns: dict[int, dict[str, Any]] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="gantry-announcements")

    def __enter__(self) -> Announcements:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(LOOK_SECONDS):
            self._look()

    def _look(self) -> None:
        """An API server that is away, or a Lease that is, is one more thing a test may do."""
        try:
            reigns = self._group.record(self._shard)["reigns"]
        except (OSError, http.client.HTTPException, ApiRefused, KeyError):
            return
        self._reigns |= {reign["epoch"]: reign for reign in reigns if reign["epoch"] > self._before}

    @property
    def elected(self) -> list[dict[str, Any]]:
        """The reigns that were begun by an election; a master that goes on in a new epoch loses nothing."""
        self._look()
        return [reign for _, reign in sorted(self._reigns.items()) if not reign["continues"]]

    @property
    def loss(self) -> int | None:
        """How many bytes were said to be lost at most; None if somebody said that nobody knows."""
        losses = [reign["loss"] for reign in self.elected]
        return None if UNKNOWN_LOSS in losses else sum(losses)

    @property
    def starts(self) -> list[tuple[int, int]]:
        """Epochs, and where in the log each begins."""
        return [(reign["epoch"], reign["end"]) for reign in self.elected]


@dataclass(frozen=True)
class Outcome:
    """What came of it."""

    name: str
    announced: int | None
    lost: int
    """Bytes, at least; 0 if every acknowledged message is there."""

    seconds: float
    """The longest time without an acknowledgement."""

    verdict: dict[str, Any]

    def demand(self, seconds_max: float) -> None:
        """Print both figures, and demand what is promised. Raises AssertionError."""
        print(
            f"RESULT {self.name}: lost {self.lost} of at most {self.announced} bytes announced;"
            f" {self.seconds} s without an acknowledgement, at most {seconds_max:.0f}; {self.verdict}"
        )
        assert self.verdict["findings"] == []
        assert self.announced is not None and self.lost <= self.announced
        assert self.seconds <= seconds_max


def under_load(
    group: Group, name: str, fault: Callable[[], None], *, shard: int = 0, is_async: bool = False,
    is_direct: bool = False,
) -> Outcome:  # fmt: skip
    """Do something to a group whose clients are busy, wait until it is well again, and judge.

    ``fault`` returns when what it did has been noticed.
    """
    topic = name.replace(" ", "-")
    group.gantry("topic", "create", topic, "--queues", str(QUEUES))
    words = ("--broker-name", f"{group.name}-{shard}", *(("--loss", "suffix") if is_async else ()))
    with group.load(topic, QUEUES, *words, is_direct=is_direct) as load, Announcements(group, shard) as announcements:
        load.report(MORE)  # the fault finds clients that are at work, and stores that have something to lose
        load.mark(name)
        fault()
        healthy = group.wait_healthy()
        noticed = load.report(MORE)
        verdict = load.finish(*(announcements.starts if is_async else ()))
        announced = announcements.loss
    print(f"{name}: healthy again {healthy:.1f} s after the fault was over; {noticed}; masters {group.masters()}")
    return Outcome(name, announced, verdict["lost_bytes"], noticed["pause"], verdict)
