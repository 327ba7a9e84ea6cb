"""A fault under load and its verdict: the announced loss, the actual loss, and the interruption that clients saw.

    the load runs -- mark -- fault -- the group is healthy again -- report -- stop, read everything, check

The announced loss is what the operator wrote into the Lease when it elected a master: at most so many bytes are lost.
The Lease drops old terms, so it is polled during the whole run.
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

POLL_SECONDS: Final = 0.2
ACKNOWLEDGEMENTS_AFTER: Final = 100
"""The number of acknowledgements that show that the group is healthy again."""
QUEUES: Final = 4
"""The number of queues of a trial's topic."""

UNKNOWN_LOSS: Final = -1
"""The announced loss in the Lease if its size is unknown."""


@final
class TermObserver:
    """Records the terms of a shard that begin during the context."""

    def __init__(self, group: Group, shard: int) -> None:
        self._group = group
        self._shard = shard
        self._before = group.lease_record(shard)["epoch"]
        self._terms: dict[int, dict[str, Any]] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="gantry-announcements")

    def __enter__(self) -> TermObserver:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(POLL_SECONDS):
            self._poll()

    def _poll(self) -> None:
        """Read the Lease. Errors are ignored, because a test may stop the API server or delete the Lease."""
        try:
            terms = self._group.lease_record(self._shard)["terms"]
        except (OSError, http.client.HTTPException, ApiRefused, KeyError):
            return
        self._terms |= {term["epoch"]: term for term in terms if term["epoch"] > self._before}

    @property
    def elected(self) -> list[dict[str, Any]]:
        """The terms that began with an election; a master that continues in a new epoch loses nothing."""
        self._poll()
        return [term for _, term in sorted(self._terms.items()) if not term["continues"]]

    @property
    def loss(self) -> int | None:
        """The announced loss in bytes; None if the operator announced an unknown loss."""
        losses = [term["loss"] for term in self.elected]
        return None if UNKNOWN_LOSS in losses else sum(losses)

    @property
    def starts(self) -> list[tuple[int, int]]:
        """Epochs, and the log position at which each begins."""
        return [(term["epoch"], term["end"]) for term in self.elected]


@dataclass(frozen=True)
class Outcome:
    """The result of a trial."""

    name: str
    announced: int | None
    """The bytes that the operator announced to lose at most; None if it announced an unknown loss."""

    lost: int
    """Lost bytes, at least; 0 if every acknowledged message is stored."""

    seconds: float
    """The longest interval without an acknowledgement."""

    verdict: dict[str, Any]
    """The result of the checker, with `findings` and `lost_bytes`."""

    def check_limits(self, seconds_max: float) -> None:
        """Print the figures and check them against the guarantees. Raises AssertionError."""
        print(
            f"RESULT {self.name}: lost {self.lost} of at most {self.announced} bytes announced;"
            f" {self.seconds} s without an acknowledgement, limit {seconds_max:.0f}; {self.verdict}"
        )
        assert self.verdict["findings"] == []
        assert self.announced is not None and self.lost <= self.announced
        assert self.seconds <= seconds_max


def run_fault_under_load(
    group: Group, name: str, fault: Callable[[], None], *, shard: int = 0, is_async: bool = False,
    is_direct: bool = False,
) -> Outcome:  # fmt: skip
    """Inject a fault into a group under load, wait until it is healthy again, and check the history.

    The name also names the topic. With ``is_direct`` the load does not use the API server once it has started.
    ``fault`` returns when Kubernetes or the operator has noticed the fault. The kill of a broker's process may stay
    unnoticed: there the acknowledgements after it show that the broker is back.
    """
    topic = name.replace(" ", "-")
    group.gantry("topic", "create", topic, "--queues", str(QUEUES))
    words = ("--broker-name", f"{group.name}-{shard}", *(("--loss", "suffix") if is_async else ()))
    with (
        group.start_load(topic, QUEUES, *words, is_direct=is_direct) as load,
        TermObserver(group, shard) as announcements,
    ):
        load.report(ACKNOWLEDGEMENTS_AFTER)  # before the fault, clients are active and stores hold data
        load.mark(name)
        fault()
        healthy = group.wait_healthy()
        noticed = load.report(ACKNOWLEDGEMENTS_AFTER)
        verdict = load.finish(*(announcements.starts if is_async else ()))
        announced = announcements.loss
    print(f"{name}: healthy again {healthy:.1f} s after the fault was over; {noticed}; masters {group.masters()}")
    return Outcome(name, announced, verdict["lost_bytes"], noticed["pause"], verdict)
