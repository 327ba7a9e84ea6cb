"""A fake cluster on an event loop in a thread of its own, for tests that have no loop."""

from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar, final

from gantry_testing.client.cluster import FakeCluster
from gantry_testing.loop_thread import LoopThread

T = TypeVar("T")


@final
class ThreadedCluster:
    """A running `FakeCluster` to which other threads and processes may connect. Use it inside `with`.

    Its data belongs to its own thread: it may be read freely, but is changed only through `run`.
    """

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self._loop = LoopThread("fake-cluster")

    def __enter__(self) -> Self:
        self._loop.__enter__()
        self.run(self.cluster.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.run(self.cluster.__aexit__(None, None, None))
        finally:
            self._loop.__exit__(None, None, None)

    def run(self, work: Coroutine[Any, Any, T], *, timeout_s: float = 10.0) -> T:
        """Run `work` on the cluster's loop and return its result."""
        return self._loop.run(work, timeout_s=timeout_s)
